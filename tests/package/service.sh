#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In a guest of guest.py, under systemd: the package's unit, from its installation to its removal. Out: a part for each question,
# `== NAME` and the answer. A step that fails ends it. Nothing is judged here but exit statuses.
set -eu

# until_ WHAT COMMAND…: waits until the command succeeds.
until_() {
    local what=$1 end=$((SECONDS + 60))
    shift
    while [ $SECONDS -lt $end ]; do
        if "$@" >/run/tried 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "not within a minute: $what"
    cat /run/tried
    ktsn status || true
    journalctl --no-pager -o cat -u ktsnd.service | tail -n 30
    return 1
}
serves() { ktsn status --json | grep -q '"name": "talker/eth0"'; }
# A datagram of the pod went through ktsnd: what its kernel knew of the pod's routes has been read.
takes() {
    ip netns exec talker ktsn run -- ktsn talk 10.0.0.2:7001 --count 5 --period 20ms --lead 500ms --clock monotonic
    ktsn status --json | grep -q '"taken": [1-9]'
}
shows() { systemctl show --value --property "$1" ktsnd.service; }

# stream COUNT: from the pod to the host behind the wire.
stream() {
    ip netns exec peer ktsn listen 10.0.0.2:7000 --count "$1" --timeout 20s --ready-fd 3 --json /run/heard 3>/run/ready >/dev/null &
    until_ "the listener" grep -q ready /run/ready
    ip netns exec talker ktsn run -- ktsn talk 10.0.0.2:7000 --count "$1" --period 20ms --lead 500ms --clock monotonic >/run/sent
    wait $!
    cat /run/heard
}

echo "== install"
rm -f /var/lib/man-db/auto-update
dpkg --install /root/ktsn.deb
until_ "the service runs" systemctl is-active ktsnd.service
systemctl is-enabled ktsnd.service

# The card with a clock is the uplink; the other end of its wire is another host. The pod's namespace comes after the service, as pods do.
echo "== configure"
ip link set eth0 up
ip address add 10.0.0.1/24 dev eth0
ip netns add peer
ip link set eth1 netns peer
ip -n peer address add 10.0.0.2/24 dev eth1
ip -n peer link set eth1 up
ip -n peer route add 10.1.0.0/24 via 10.0.0.1
echo 1 >/proc/sys/net/ipv4/ip_forward
cat >/etc/ktsn/ktsnd.toml <<'END'
[[port]]
device = "eth0"

[[attachment]]
name = "talker/eth0"
netns = "talker"
interface = "eth0"
uplink = "eth0"
destinations = ["10.0.0.0/24"]
addresses = ["10.1.0.2"]
late = "send"
END
mkdir -p /etc/systemd/system/ktsnd.service.d
cat >/etc/systemd/system/ktsnd.service.d/probe.conf <<'END'
[Service]
ExecStartPost=/usr/bin/perl /share/probe $MAINPID
END
systemctl daemon-reload
systemctl restart ktsnd.service || { journalctl --no-pager -o cat -u ktsnd.service; exit 1; }
ip netns add talker
ip link add pod0 type veth peer name eth0 netns talker
ip address add 10.1.0.1/24 dev pod0
ip link set pod0 up
ip -n talker address add 10.1.0.2/24 dev eth0
ip -n talker link set eth0 up
ip -n talker link set lo up
ip -n talker route add default via 10.1.0.1
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
