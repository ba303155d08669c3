#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: nothing. Out: the network namespaces of tests whose process is gone (ktsnfPID-…: a test that was interrupted can't remove
# its own), removed with what still runs in them. Those of tests that run are left alone.
set -uo pipefail
shopt -s nullglob
for path in /run/netns/ktsnf*; do
    name=${path##*/}
    pid=${name#ktsnf}
    pid=${pid%%-*}
    case $pid in '' | *[!0-9]*) continue ;; esac
    [ -e "/proc/$pid" ] && continue
    ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$name" 2>/dev/null && echo "leftovers: $name removed" >&2
done
exit 0
