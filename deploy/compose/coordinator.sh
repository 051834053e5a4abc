#!/bin/sh
# Found the federation once, lay out the invites, then become the coordinator. HUB, HUB_HOST, INVITES, SITES.
set -eu
umask 077
ports=${PORTS:-"--port 443 --admin-port 8203 --enrol-port 8204"}
if [ ! -e "$HUB/coordinator.json" ]; then
  names=""
  for s in $SITES; do names="$names --site $s"; done
  # shellcheck disable=SC2086
  polyclinic coordinator init "$HUB" --host "$HUB_HOST" $ports $names
fi
mkdir -p "$INVITES"
for s in $SITES; do
  [ -e "$HUB/invites/$s.invite.json" ] || continue
  cp "$HUB/invites/$s.invite.json" "$INVITES/.$s.new"
  mv "$INVITES/.$s.new" "$INVITES/$s.invite.json"
done
exec polyclinic coordinator start "$HUB" --foreground
