#!/bin/sh
# A hospital's node: write its node file once, join, pin the others, then become the node. NAME, HOME_OF_SITE, INVITES, SITES, OMOP_*.
set -eu
umask 077
mkdir -p "$HOME_OF_SITE"
node="$HOME_OF_SITE/node.toml"
if [ ! -e "$node" ]; then
  cat > "$node" <<END
[site]
name = "$NAME"
folder = "site"

[source]
kind = "omop"
url = "env:OMOP_URL"
password = "file:$OMOP_PASSWORD_FILE"
schema = "$NAME"

[policy]
min_patients = 20
min_sites = 3
max_epsilon_total = 8.0

[keys]
studies = "policy"

[monitor]
listen = "127.0.0.1:${MONITOR_PORT:-9464}"
END
fi
kit="$HOME_OF_SITE/site/federation"
while [ ! -e "$kit/flare/startup/client.crt" ]; do
  while [ ! -e "$INVITES/$NAME.invite.json" ]; do sleep 1; done
  polyclinic site join "$INVITES/$NAME.invite.json" --node "$node" --wait 300 || sleep 2
done
if [ ! -e "$kit/pins.json" ]; then
  # REHEARSAL: --yes stands for owners who compared the fingerprints
  while :; do
    pinned=$(polyclinic site pin --node "$node" --yes --json || true)
    missing=""
    for s in $SITES; do case "$pinned" in *"\"$s\""*) ;; *) missing="$missing $s" ;; esac; done
    [ -n "$missing" ] || break
    rm -f "$kit/pins.json"
    sleep 2
  done
fi
exec polyclinic site start --node "$node" --foreground
