# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts in the guests of guest.py share: waiting, the network, a stream. Sourced, never run. Nothing is judged here.

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
    (talk 7001 5)
    ktsn status --json | grep -q '"taken": [1-9]'
}
shows() { systemctl show --value --property "$1" ktsnd.service; }

# listen PORT COUNT TIMEOUT: in the background, on the host behind the wire; $! is the listener. Its figures go into /run/heard.PORT.
listen() {
    ip netns exec peer ktsn listen "10.0.0.2:$1" --count "$2" --timeout "$3" --ready-fd 3 --json "/run/heard.$1" 3>"/run/ready.$1" >/dev/null &
    until_ "the listener at $1" grep -q ready "/run/ready.$1"
}
# talk PORT COUNT FLAG…: from the pod, under the installed library.
talk() {
    local port=$1 count=$2
    shift 2
    exec ip netns exec talker ktsn run -- ktsn talk "10.0.0.2:$port" --count "$count" --period 20ms --lead 500ms --clock monotonic "$@"
}
# stream COUNT: from the pod to that host.
stream() {
    listen 7000 "$1" 20s
    (talk 7000 "$1") >/run/sent
    wait $!
    cat /run/heard.7000
}

# The card with a clock is the uplink; the other end of its wire is another host.
configure() {
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
}
pod() {
    ip netns add talker
    ip link add pod0 type veth peer name eth0 netns talker
    ip address add 10.1.0.1/24 dev pod0
    ip link set pod0 up
    ip -n talker address add 10.1.0.2/24 dev eth0
    ip -n talker link set eth0 up
    ip -n talker link set lo up
    ip -n talker route add default via 10.1.0.1
}
