#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In a guest of guest.py, under systemd: the package's unit, from its installation to its removal. Out: a part for each question,
# `== NAME` and the answer. A step that fails ends it. Nothing is judged here but exit statuses.
set -eu

# shellcheck source=tests/package/common.sh
. /share/common

echo "== install"
rm -f /var/lib/man-db/auto-update
dpkg --install /root/ktsn.deb
until_ "the service runs" systemctl is-active ktsnd.service
systemctl is-enabled ktsnd.service

# The pod's namespace comes after the service, as pods do.
echo "== configure"
configure
mkdir -p /etc/systemd/system/ktsnd.service.d
cat >/etc/systemd/system/ktsnd.service.d/probe.conf <<'END'
[Service]
ExecStartPost=/usr/bin/perl /share/probe $MAINPID
END
systemctl daemon-reload
systemctl restart ktsnd.service || { journalctl --no-pager -o cat -u ktsnd.service; exit 1; }
pod
until_ "the pod's attachment" serves
until_ "a datagram of the pod" takes

echo "== probe"
cat /run/probed
echo "== security"
systemd-analyze security --no-pager --json=short --threshold=42 ktsnd.service
echo "== before"
ktsn status --json
echo "== heard"
stream 50
echo "== status"
ktsn status --json
echo "== doctor"
ktsn doctor --json || true # some finding may be a failure on this machine

echo "== killed"
systemctl kill --signal=KILL ktsnd.service
started_again() { [ "$(shows NRestarts)" -ge 1 ]; }
until_ "the next start" started_again
until_ "the pod's attachment again" serves
stream 20

# Another start does not help.
echo "== wrong"
systemctl stop ktsnd.service
ls /run/ktsn
echo 'no_such_key = 1' >/etc/ktsn/ktsnd.toml
systemctl start ktsnd.service || true
until_ "the failure" systemctl is-failed ktsnd.service
shows ExecMainStatus
shows NRestarts

echo "== removed"
dpkg --purge ktsn
if systemctl is-active ktsnd.service; then exit 1; fi
shows LoadState
echo "== end"
