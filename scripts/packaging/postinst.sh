#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the files are there (dpkg: `configure`; rpm: 1 for the first version, 2 or more for an upgrade). The service starts as the system's
# presets say; an upgrade starts the running ktsnd again, and programs are attached again within a second.
set -e
case ${1:-} in configure | [0-9]*) ;; *) exit 0 ;; esac
[ -d /run/systemd/system ] || exit 0
systemd-tmpfiles --create ktsn.conf
systemctl daemon-reload
if { [ "$1" = configure ] && [ -z "${2:-}" ]; } || [ "$1" = 1 ]; then
    systemctl preset ktsnd.service
    if systemctl --quiet is-enabled ktsnd.service; then systemctl start ktsnd.service; fi
else
    systemctl try-restart ktsnd.service
fi
