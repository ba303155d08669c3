#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the files are gone (dpkg: `remove`, `purge`; rpm: 0): what ktsnd made goes too. The configuration is the package manager's. Folders in
# /var/lib/ktsn are a Kubernetes node agent's, whose pods still use them; then the run directory is that node's, too. So it is while a ktsnd holds
# its lock.
set -e
case ${1:-} in remove | purge | 0) ;; *) exit 0 ;; esac
if [ -d /var/lib/ktsn ]; then
    find /var/lib/ktsn -maxdepth 1 ! -type d -delete
    rmdir --ignore-fail-on-non-empty /var/lib/ktsn
fi
if [ ! -d /var/lib/ktsn ] && { [ ! -e /run/ktsn/lock ] || flock --exclusive --nonblock /run/ktsn/lock true; }; then rm -rf /run/ktsn; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
