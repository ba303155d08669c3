# SPDX-License-Identifier: Apache-2.0
# An ordinary program with SO_TXTIME in a namespace with several interfaces: several_ways.py HOW COUNT A B [DEVICE…]
#   alternate   one unconnected socket, a datagram to A, one to B, and so on      senders 1, 2
#   connected   a socket that is connected to A, one that is connected to B       senders 3, 4
#   device      a socket bound to each DEVICE that sends to A, then to B          senders 5, 6; 7, 8
#   source      a socket bound to each source address (given as DEVICE), to both  senders 9, 10; 11, 12
#   info        a datagram for each DEVICE (or source address) by IP_PKTINFO      senders 15, 16; 17, 18; …
#   buffer      non-blocking, with a small SO_SNDBUF, alternately to both, as many as it takes: "sent N"
#   packet      a packet socket (SOCK_RAW) on each DEVICE                         senders 13, 14
# Prints "sent N" and "failed N". It knows nothing of KTSN. Payload: the mark that faults_talker writes.
import socket
import struct
import sys
import time

SO_TXTIME, TAI, PORT = 61, 11, 7788
PERIOD, LEAD = 1_000_000, 200_000_000
how, count, to = sys.argv[1], int(sys.argv[2]), sys.argv[3:5]
rest = sys.argv[5:]
sent = failed = 0


def timed(made):
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("=iI", TAI, 0))
    return made


def udp():
    return timed(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def mark(sender, sequence, at):
    return struct.pack("=4sIQQII", b"KTSF", sender, sequence, at, TAI, 0) + bytes(16)


def send(through, sender, sequence, destination, frame=lambda octets: octets, more=()):
    global sent, failed
    at = time.clock_gettime_ns(TAI) + LEAD
    try:
        data = frame(mark(sender, sequence, at))
        control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("=Q", at)), *more]
        through.sendmsg([data], control, 0, *destination)
        sent += 1
    except OSError as error:
        print(error, file=sys.stderr)
        failed += 1
    time.sleep(PERIOD / 1e9)


def checksum(octets):
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(source, destination, octets):
    length = 28 + len(octets)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 17, 0, source, destination)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return head + struct.pack("!HHHH", PORT, PORT, 8 + len(octets), 0) + octets


if how == "buffer":
    one = udp()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    one.setblocking(False)
    PERIOD = 0
    while failed == 0 and sent < 10_000:
        send(one, 19, sent, [(to[sent % 2], PORT)])
elif how == "info":
    IP_PKTINFO = 8
    one = udp()
    for number, name in enumerate(rest):
        index, source = (0, name) if "." in name else (socket.if_nametoindex(name), "0.0.0.0")
        info = struct.pack("=i4s4s", index, socket.inet_aton(source), bytes(4))
        for sequence in range(count):
            for place, address in enumerate(to):
                more = [(socket.IPPROTO_IP, IP_PKTINFO, info)]
                send(one, 15 + 2 * number + place, sequence, [(address, PORT)], more=more)
elif how == "alternate":
    one = udp()
    for sequence in range(count):
        for sender, address in enumerate(to, 1):
            send(one, sender, sequence, [(address, PORT)])
elif how == "connected":
    for sender, address in enumerate(to, 3):
        one = udp()  # connecting again keeps the first one's source address
        one.connect((address, PORT))
        for sequence in range(count):
            send(one, sender, sequence, [])
elif how in ("device", "source"):
    for number, name in enumerate(rest):
        one = udp()
        if how == "device":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")
        else:
            one.bind((name, 0))
        for sequence in range(count):
            for place, address in enumerate(to):
                send(one, (5 if how == "device" else 9) + 2 * number + place, sequence, [(address, PORT)])
else:
    for sender, name in enumerate(rest, 13):
        one = timed(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        one.bind((name, 0x0800))
        own = one.getsockname()[4]
        source, destination = (
            socket.inet_aton(address)
            for address in (("10.244.0.5", "10.244.0.9"), ("10.250.0.5", "10.250.0.9"))[sender - 13]
        )
        header = b"\x02\0\0\0\xee\x01" + own + b"\x08\0"
        for sequence in range(count):
            send(one, sender, sequence, [], lambda octets: header + datagram(source, destination, octets))
print("sent", sent)
print("failed", failed, flush=True)
