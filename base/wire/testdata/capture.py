#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the captured frames of this folder again, from a live Linux kernel.

In: nothing (root, iproute2). Out: NAME.hex beside this file, one frame each, sixteen octets a line.
It makes two network namespaces joined by a veth pair with a VXLAN device on each side, sends single datagrams
and records what the receiving host's uplink sees. It never touches a device outside its own namespaces.
Addresses are fixed so that a second run differs only in the fields that the kernel draws at random
(identification, VXLAN source port, flow label).
"""
import ctypes, os, socket, struct, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
TAG = f"wire{os.getpid()}"
A, B = f"{TAG}a", f"{TAG}b"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PACKET_AUXDATA, SOL_PACKET = 8, 263
TP_STATUS_VLAN_VALID = 0x10


def run(command):
    subprocess.run(command.split(), check=True)


def enter(namespace):
    with open(f"/run/netns/{namespace}") as handle:
        if LIBC.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def link(namespace, last):
    n = f"ip -n {namespace}"
    run(f"{n} link set lo up")
    run(f"{n} link set up0 address 02:00:00:00:00:0{last}")
    run(f"{n} link set up0 up")
    run(f"{n} addr add 192.0.2.{last}/24 dev up0")
    run(f"{n} addr add 2001:db8::{last}/64 dev up0 nodad")
    # Short fragments make short files.
    run(f"{n} route replace 192.0.2.0/24 dev up0 mtu 576")
    # Unfinished (offloaded) checksums never get to a real wire: have the sender finish them.
    run(f"ip netns exec {namespace} ethtool -K up0 tx off tso off gso off")
    peer = 3 - last
    vx = [("vx4", 42, f"192.0.2.{last}", f"192.0.2.{peer}", 8472), ("vx6", 43, f"2001:db8::{last}", f"2001:db8::{peer}", 4789)]
    for device, vni, local, remote, port in vx:
        run(f"{n} link add {device} address 02:00:00:00:{vni:x}:0{last} type vxlan id {vni} local {local} "
            f"remote {remote} dstport {port} dev up0")
        run(f"{n} link set {device} up")
        run(f"{n} addr add 10.{vni}.0.{last}/24 dev {device}")
        run(f"{n} addr add fd00:{vni}::{last}/64 dev {device} nodad")
        run(f"{n} neigh replace 10.{vni}.0.{peer} lladdr 02:00:00:00:{vni:x}:0{peer} dev {device}")
        run(f"{n} neigh replace fd00:{vni}::{peer} lladdr 02:00:00:00:{vni:x}:0{peer} dev {device}")
    run(f"{n} neigh replace 192.0.2.{peer} lladdr 02:00:00:00:00:0{peer} dev up0")
    run(f"{n} neigh replace 2001:db8::{peer} lladdr 02:00:00:00:00:0{peer} dev up0")


def tap():
    enter(B)
    packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packet.bind(("up0", 0))
    packet.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    packet.settimeout(2)
    return packet


def receive(packet, marker):
    """The next incoming frame with `marker` in it, its 802.1Q tag put back where the kernel took it out."""
    while True:
        frame, control, _, address = packet.recvmsg(65535, 256)
        if marker not in frame or address[2] == socket.PACKET_OUTGOING:
            continue
        for level, kind, data in control:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
                if status & TP_STATUS_VLAN_VALID:
                    frame = frame[:12] + struct.pack("!HH", tpid or 0x8100, tci) + frame[12:]
        return frame


def save(name, frame):
    lines = [" ".join(f"{octet:02x}" for octet in frame[i:i + 16]) for i in range(0, len(frame), 16)]
    with open(os.path.join(HERE, f"{name}.hex"), "w") as out:
        out.write("\n".join(lines) + "\n")
    print(f"{name}: {len(frame)} octets")


def datagram(family, source, destination, payload, options=()):
    sender = socket.socket(family, socket.SOCK_DGRAM)
    for level, option, value in options:
        sender.setsockopt(level, option, value)
    sender.bind(source)
    sender.sendto(payload, destination)


def cases(packet):
    enter(A)
    four, six = socket.AF_INET, socket.AF_INET6
    tos = [(socket.IPPROTO_IP, socket.IP_TOS, 0xB9)]  # EF, ECT(1)
    record_route = [(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([7, 11, 4] + [0] * 8 + [1]))]
    no_df = [(socket.IPPROTO_IP, 10, 0)]  # IP_MTU_DISCOVER = IP_PMTUDISC_DONT
    hop_options = [(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))]

    def one(name, *arguments):
        marker = f"ktsn {name}".encode()
        datagram(arguments[0], arguments[1], arguments[2], marker, *arguments[3:])
        save(name, receive(packet, marker))

    one("udp4", four, ("192.0.2.1", 5001), ("192.0.2.2", 6001))
    one("udp4-options", four, ("192.0.2.1", 5001), ("192.0.2.2", 6001), record_route)
    one("udp6", six, ("2001:db8::1", 5002), ("2001:db8::2", 6002))
    one("udp6-hop-by-hop", six, ("2001:db8::1", 5002), ("2001:db8::2", 6002), hop_options)
    one("vxlan4-udp4", four, ("10.42.0.1", 5003), ("10.42.0.2", 6003), tos)
    one("vxlan4-udp6", six, ("fd00:42::1", 5004), ("fd00:42::2", 6004))
    one("vxlan6-udp4", four, ("10.43.0.1", 5005), ("10.43.0.2", 6005))
    one("vxlan6-udp6", six, ("fd00:43::1", 5006), ("fd00:43::2", 6006))

    # Two fragments: the second carries the marker, the first the UDP header.
    marker = b"ktsn udp4-fragment"
    datagram(four, ("192.0.2.1", 5001), ("192.0.2.2", 6001), marker + bytes(600) + marker, no_df)
    save("udp4-fragment-first", receive(packet, marker))
    save("udp4-fragment-last", receive(packet, marker))

    # A complete frame with its own 802.1Q tag through AF_PACKET: the captured udp4, priority 6, VID 100.
    with open(os.path.join(HERE, "udp4.hex")) as handle:
        plain = bytes.fromhex(handle.read())
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.bind(("up0", 0))
    raw.send(plain[:12] + struct.pack("!HH", 0x8100, 6 << 13 | 100) + plain[12:])
    save("vlan-udp4", receive(packet, b"ktsn udp4"))


def main():
    try:
        run(f"ip netns add {A}")
        run(f"ip netns add {B}")
        run(f"ip link add up0 netns {A} type veth peer name up0 netns {B}")
        link(A, 1)
        link(B, 2)
        time.sleep(0.3)
        cases(tap())
    finally:
        for namespace in (A, B):
            subprocess.run(["ip", "netns", "del", namespace], check=False)
    return 0


sys.exit(main())
