#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Before the files go (dpkg: `remove`; rpm: 0). Removal is refused, with the list, while the node's ktsnd serves attachments: their programs
# would lose their transmit times. KTSN_FORCE_REMOVE=1 removes it none the less. An upgrade is not refused.
set -e
case ${1:-} in remove | 0) ;; *) exit 0 ;; esac

# The names of the attachments, a line each. `ktsn status` fails where no ktsnd answers: then nothing is attached.
attachments() {
    ktsn status --run-dir /run/ktsn --json 2>/dev/null |
        sed -n '/^  "attachments": \[/,/^  \]/s/^      "name": "\(.*\)",\{0,1\}$/\1/p'
}

attached=$(attachments || true)
if [ -n "$attached" ] && [ "${KTSN_FORCE_REMOVE:-}" != 1 ]; then
    {
        echo "ktsn: not removed: ktsnd serves these attachments:"
        echo "$attached" | sed 's/^/  /'
        echo "ktsn: end their programs and detach them, or set KTSN_FORCE_REMOVE=1 in the environment of the removal"
    } >&2
    exit 1
fi
if [ -d /run/systemd/system ]; then systemctl --quiet disable --now ktsnd.service || true; fi
