#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the captured frames of this folder again, from a live Linux kernel doing what Flannel sets up.

In: nothing (root, iproute2). Out: NAME.hex beside this file, one frame each, sixteen octets a line.
Three network namespaces: two hosts joined by a veth pair, a pod behind a bridge on the first one, VXLAN devices as
Flannel's VXLAN backend configures them (nolearning, static neighbours and forwarding entries, routes onlink). Frames
through the tunnel are taken at the second host's uplink, the others where they leave the pod.
Addresses are fixed so that a second run differs only in what the kernel draws at random (identification, VXLAN
source port, flow label). It never touches a device outside its own namespaces.
"""
import ctypes, os, socket, struct, subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
TAG = f"resolve{os.getpid()}"
A, B, POD = f"{TAG}a", f"{TAG}b", f"{TAG}p"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


def run(command):
    subprocess.run(command.split(), check=True)


def inside(namespace, command):
    run(f"ip netns exec {namespace} {command}")


def enter(namespace):
    with open(f"/run/netns/{namespace}") as handle:
        if LIBC.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def host(namespace, last):
    """Uplink and Flannel's devices of host `last` (1 or 2); its pods are 10.244.(last-1).0/24."""
    n, peer = f"ip -n {namespace}", 3 - last
    run(f"{n} link set lo up")
    run(f"{n} link set up0 address 02:00:00:00:00:0{last}")
    run(f"{n} link set up0 up")
    run(f"{n} addr add 192.168.77.{last}/24 dev up0")
    run(f"{n} addr add 2001:db8:77::{last}/64 dev up0 nodad")
    inside(namespace, "ethtool -K up0 tx off tso off gso off")
    run(f"{n} neigh replace 192.168.77.{peer} lladdr 02:00:00:00:00:0{peer} dev up0")
    run(f"{n} neigh replace 2001:db8:77::{peer} lladdr 02:00:00:00:00:0{peer} dev up0")
    for device, octet, local in ("flannel.1", "f4", f"192.168.77.{last}"), ("flannel-v6.1", "f6", f"2001:db8:77::{last}"):
        run(f"{n} link add {device} address 02:00:00:00:{octet}:0{last} type vxlan id 1 local {local} "
            f"dstport 8472 nolearning dev up0")
        run(f"{n} link set {device} up")
    run(f"{n} addr add 10.244.{last - 1}.0/32 dev flannel.1")
    run(f"{n} addr add fd00:244:{last - 1}::/128 dev flannel-v6.1 nodad")
    there = peer - 1
    run(f"{n} neigh replace 10.244.{there}.0 lladdr 02:00:00:00:f4:0{peer} dev flannel.1 nud permanent")
    run(f"{n} neigh replace fd00:244:{there}:: lladdr 02:00:00:00:f6:0{peer} dev flannel-v6.1 nud permanent")
    run(f"bridge -n {namespace} fdb replace 02:00:00:00:f4:0{peer} dev flannel.1 dst 192.168.77.{peer}")
    run(f"bridge -n {namespace} fdb replace 02:00:00:00:f6:0{peer} dev flannel-v6.1 dst 2001:db8:77::{peer}")
    run(f"{n} route add 10.244.{there}.0/24 via 10.244.{there}.0 dev flannel.1 onlink")
    run(f"{n} route add fd00:244:{there}::/64 via fd00:244:{there}:: dev flannel-v6.1 onlink")


def pod():
    n, p = f"ip -n {A}", f"ip -n {POD}"
    inside(A, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
    run(f"{n} link add cni0 address 02:00:00:00:c0:01 type bridge")
    run(f"{n} link add pod0 type veth peer name eth0 netns {POD}")
    run(f"{p} link set eth0 address 02:00:00:00:0d:05")
    for command in ("link set pod0 master cni0", "link set pod0 mtu 1450", "link set pod0 up", "link set cni0 up",
                    "addr add 10.244.0.1/24 dev cni0", "addr add fd00:244::1/64 dev cni0 nodad"):
        run(f"{n} {command}")
    inside(POD, "sysctl -qw net.ipv6.conf.eth0.addr_gen_mode=1")
    for command in ("link set lo up", "link set eth0 mtu 1450", "link set eth0 up", "addr add 10.244.0.5/24 dev eth0",
                    "addr add fd00:244::5/64 dev eth0 nodad", "addr add fe80::5/64 dev eth0 nodad",
                    "route add default via 10.244.0.1", "route add default via fd00:244::1",
                    "neigh replace 10.244.0.1 lladdr 02:00:00:00:c0:01 dev eth0",
                    "neigh replace 10.244.0.6 lladdr 02:00:00:00:0d:06 dev eth0",
                    "neigh replace fd00:244::1 lladdr 02:00:00:00:c0:01 dev eth0",
                    "neigh replace fe80::6 lladdr 02:00:00:00:0d:06 dev eth0"):
        run(f"{p} {command}")
    inside(POD, "ethtool -K eth0 tx off tso off gso off")


def tap(namespace, device):
    enter(namespace)
    packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packet.bind((device, 0))
    packet.settimeout(2)
    return packet


def receive(packet, marker):
    while True:
        frame = packet.recv(65535)
        if marker in frame:
            return frame


def one(name, packet, family, destination, options=()):
    enter(POD)
    marker = f"ktsn {name}".encode()
    sender = socket.socket(family, socket.SOCK_DGRAM)
    for level, option, value in options:
        sender.setsockopt(level, option, value)
    sender.bind(("0.0.0.0" if family == socket.AF_INET else "::", 5001))
    sender.sendto(marker, destination)
    sender.close()
    frame = receive(packet, marker)
    lines = [" ".join(f"{octet:02x}" for octet in frame[i:i + 16]) for i in range(0, len(frame), 16)]
    with open(os.path.join(HERE, f"{name}.hex"), "w") as out:
        out.write("\n".join(lines) + "\n")
    print(f"{name}: {len(frame)} octets")


def cases():
    four, six, ip = socket.AF_INET, socket.AF_INET6, socket.IPPROTO_IP
    wire, eth = tap(B, "up0"), tap(A, "pod0")
    tos = [(ip, socket.IP_TOS, 0xB9), (ip, socket.IP_TTL, 9)]  # EF, ECT(1)
    broadcast = [(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)]
    one("flannel4", wire, four, ("10.244.1.7", 6001))
    one("flannel4-tos", wire, four, ("10.244.1.7", 6001), tos)
    one("flannel6", wire, six, ("fd00:244:1::7", 6001))
    one("pod4", eth, four, ("10.244.0.6", 6001))
    one("gateway4", eth, four, ("203.0.113.9", 6001))
    one("multicast4", eth, four, ("239.129.2.3", 6001))
    one("broadcast4", eth, four, ("10.244.0.255", 6001), broadcast)
    one("limited4", eth, four, ("255.255.255.255", 6001), broadcast)
    scope = int(subprocess.check_output(f"ip netns exec {POD} cat /sys/class/net/eth0/ifindex".split()))
    one("link-local6", eth, six, ("fe80::6", 6001, 0, scope))
    one("multicast6", eth, six, ("ff05::1:3", 6001, 0, scope))


def main():
    for namespace in (A, B, POD):
        run(f"ip netns add {namespace}")
    try:
        run(f"ip -n {A} link add up0 type veth peer name up0 netns {B}")
        host(A, 1)
        host(B, 2)
        pod()
        cases()
    finally:
        for namespace in (A, B, POD):
            subprocess.run(["ip", "netns", "del", namespace])


if __name__ == "__main__":
    main()
