#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the files are gone (dpkg: `remove`, `purge`; rpm: 0): what ktsnd made goes too. The configuration is the package manager's.
set -e
case ${1:-} in remove | purge | 0) ;; *) exit 0 ;; esac
rm -rf /run/ktsn /var/lib/ktsn
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
