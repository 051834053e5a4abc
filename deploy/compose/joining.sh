#!/bin/sh
# REHEARSAL ONLY: approve every request by the fingerprint that it carries. Between hospitals two people compare it by telephone.
set -eu
umask 077
left="$SITES"
while [ -n "$left" ]; do
  still=""
  for s in $left; do
    mark=$(polyclinic coordinator requests "$HUB" --json 2>/dev/null | python -c "import json, sys
e = json.load(sys.stdin).get('requests', {}).get('$s', {})
print('joined' if e.get('state') == 'approved' else e['fingerprint'] if e.get('state') == 'waiting' else '')" || true)
    if [ "$mark" = joined ]; then continue; fi
    if [ -n "$mark" ]; then polyclinic coordinator approve "$HUB" "$s" --fingerprint "$mark" --yes; else still="$still $s"; fi
  done
  left="$still"
  [ -z "$left" ] || sleep 2
done
echo "all have joined:$SITES"
