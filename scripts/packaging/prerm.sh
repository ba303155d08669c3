#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Before the files go (dpkg: `remove`; rpm: 0). Removal is refused, with the list, while the node's ktsnd serves attachments: their programs
# would lose their transmit times; or while it runs and does not say which it serves. KTSN_FORCE_REMOVE=1 removes it none the less.
# An upgrade is not refused.
set -e
case ${1:-} in remove | 0) ;; *) exit 0 ;; esac

status=$(ktsn status --run-dir /run/ktsn --json 2>/dev/null || true)
# The names of the attachments, a line each.
attached=$(printf '%s\n' "$status" | sed -n '/^  "attachments": \[/,/^  \]/s/^      "name": "\(.*\)",\{0,1\}$/\1/p')
# A ktsnd that runs holds this file's lock.
if [ -z "$status" ] && [ -e /run/ktsn/lock ] && ! flock --exclusive --nonblock /run/ktsn/lock true; then
    attached="(unknown: ktsnd runs and does not answer)"
fi
if [ -n "$attached" ] && [ "${KTSN_FORCE_REMOVE:-}" != 1 ]; then
    {
        echo "ktsn: not removed: ktsnd serves these attachments:"
        echo "$attached" | sed 's/^/  /'
        echo "ktsn: end their programs and detach them, or set KTSN_FORCE_REMOVE=1 in the environment of the removal"
    } >&2
    exit 1
fi
if [ -d /run/systemd/system ]; then systemctl --quiet disable --now ktsnd.service || true; fi
