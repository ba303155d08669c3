#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of steps_main.c in Python's own socket module: the same words in, the same lines out."""

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time

SO_TXTIME, SO_TIMESTAMPING, UDP_SEGMENT, CLOCK_TAI, MSG_ERRQUEUE, PROTOCOL = 61, 37, 103, 11, 0x2000, 0x88B5
CLOCKS = {"tai": CLOCK_TAI, "mono": time.CLOCK_MONOTONIC, "real": time.CLOCK_REALTIME}
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6, "packet": socket.AF_PACKET, "unix": socket.AF_UNIX}
OPTIONS = {
    "priority": (socket.SOL_SOCKET, 12), "tos": (0, 1), "ttl": (0, 2), "mcast-ttl": (0, 33), "tclass": (41, 67),
    "broadcast": (socket.SOL_SOCKET, socket.SO_BROADCAST), "stamping": (socket.SOL_SOCKET, SO_TIMESTAMPING),
    "reuse": (socket.SOL_SOCKET, socket.SO_REUSEADDR), "hops": (41, 16),
}

sockets, asked, steps = {}, {}, [step for step in sys.argv[1:]]


def address(text, family):
    host, _, port = text.rpartition(",")
    if family == socket.AF_PACKET:
        raise ValueError(text)
    return (host or "127.0.0.1", int(port))


def keys(words):
    return dict(word.split("=", 1) for word in words if "=" in word)


def instant(text):
    clock, _, when = text.partition(":")
    if when[0] == "=":
        return int(when[1:])
    return time.clock_gettime_ns(CLOCKS[clock]) + int(when)


def set_txtime(sock, key):
    value = struct.pack("=iI24x", CLOCKS.get(key.get("clock", "tai")) if key.get("clock", "tai") in CLOCKS
                        else int(key["clock"]), int(key.get("flags", 0)))
    sock.setsockopt(socket.SOL_SOCKET, SO_TXTIME, value[:int(key.get("len", 8))])


def get_txtime(sock, key):
    # getsockopt of Python returns the octets that the kernel filled.
    value = sock.getsockopt(socket.SOL_SOCKET, SO_TXTIME, int(key.get("len", 8)))
    clock, flags = struct.unpack("=iI", value)
    return f"{len(value)} octets, clock {clock} flags {flags:x}"


def control(which, key):
    items = []
    if "gso" in key:
        items.append((socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", int(key["gso"]))))
    if "tx" in key:
        asked[which] = instant(key["tx"])
        items.append((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=Q", asked[which])[:int(key.get("txlen", 8))]))
    for name, level, kind in (("tos", 0, 1), ("ttl", 0, 2), ("tclass", 41, 67), ("hops", 41, 52)):
        if name in key:
            items.append((level, kind, struct.pack("=i", int(key[name]))))
    return items


def packet(sock, key):
    """(link-layer address, header in the frame) of a packet socket."""
    mac = bytes(int(octet, 16) for octet in key["mac"].split(":"))
    header = b""
    if sock.type & 0xF == socket.SOCK_RAW:
        # SIOCGIFHWADDR: /sys shows another network namespace.
        source = fcntl.ioctl(sock, 0x8927, struct.pack("16s16x", b"eth0"))[18:24]
        header = mac + source + struct.pack(">H", PROTOCOL)
    halen = int(key.get("halen", 6))
    return ("eth0", int(key.get("proto", str(PROTOCOL)), 0), 0, 0, mac[:halen]), header


def send(which, key):
    sock = sockets[which]
    letter = key.get("fill", "a").encode()
    parts = [letter * int(size) for size in key.get("size", "10").split("+")]
    to = address(key["to"], sock.family) if "to" in key else None
    if "mac" in key:
        to, header = packet(sock, key)
        parts.insert(0, header)
    flags = socket.MSG_DONTWAIT if "dontwait" in key else 0
    via = key.get("via", "sendmsg")
    if via == "send":
        return sock.send(parts[0], flags)
    if via == "sendto":
        return sock.sendto(parts[0], flags, to)
    if via == "write":
        return os.write(sock.fileno(), parts[0])
    if via == "writev":
        return os.writev(sock.fileno(), parts)
    arguments = [parts, control(which, key), flags]
    return sock.sendmsg(*arguments, to) if to else sock.sendmsg(*arguments)


def batch(which, key):
    """Python has no sendmmsg: one sendmsg after the other, as many."""
    sent = []
    for n in range(int(key["count"])):
        fill = chr(ord(key.get("fill", "a")) + n)
        sent.append(send(which, key | {"fill": fill}))
    return f"{len(sent)}: " + " ".join(map(str, sent))


def ready(sock, events, limit):
    poll = select.poll()
    poll.register(sock, events)
    found = poll.poll(limit)
    return found[0][1] if found else 0


def receive(sock, key):
    if not ready(sock, select.POLLIN, int(key.get("wait", 1000))):
        return "nothing"
    data = sock.recv(70000)
    return f"{len(data)} of {data[:1].decode() or '-'}"


def wait(sock, key):
    found = ready(sock, select.POLLIN | select.POLLPRI, int(key.get("wait", 1000)))
    names = ((select.POLLIN, "in "), (select.POLLOUT, "out "), (select.POLLERR, "err "), (select.POLLPRI, "pri "))
    return "".join(name for bit, name in names if found & bit) or "nothing"


def describe(level, kind, data, wanted):
    if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
        seconds, nanoseconds = struct.unpack_from("=qq", data)
        age = time.time_ns() - seconds * 10**9 - nanoseconds
        return f" stamp({'none' if seconds == 0 else 'recent' if 0 <= age < 5 * 10**9 else 'wrong'})"
    if (level, kind) in ((0, 11), (41, 25)) or level == 263:
        error, origin, what, code, _, info, more = struct.unpack_from("=IBBBBII", data)
        if origin == 4:
            return f" stamped({level}.{kind} {errno.errorcode[error]} type={info} key={more})"
        told = (" its-time" if more << 32 | info == wanted else " another-time") if origin == 6 else ""
        return f" error({level}.{kind} {errno.errorcode[error]} origin={origin} type={what} code={code}{told})"
    return f" other({level}.{kind})"


def errors(which, key, say):
    sock, count = sockets[which], int(key.get("count", 16))
    for n in range(count):
        ready(sock, 0, int(key.get("wait", 200)))
        try:
            data, items, flags, _ = sock.recvmsg(4096, 512, MSG_ERRQUEUE)
        except OSError as error:
            say(f"{n} entries, then {errno.errorcode[error.errno]}")
            return
        last = data[-1:].decode("latin-1")
        text = f"{len(data)} octets flags {flags:x} ends with {last if 'a' <= last <= 'z' else '-'}"
        say(text + "".join(describe(*item, asked.get(which, 0)) for item in items))
    say(f"{count} entries")


def name_of(sock):
    port = sock.getsockname()[1]
    return "no port" if port == 0 else "a port of the kernel's" if port >= 32768 else "a port of its own"


def kind_of(words):
    kind = socket.SOCK_STREAM if "stream" in words else socket.SOCK_RAW if "raw" in words else socket.SOCK_DGRAM
    return kind | (socket.SOCK_NONBLOCK if "nonblock" in words else 0)


def act(verb, words, key, say):
    """One step on a socket; what to print."""
    which = int(words[0])
    if verb == "socket":
        family = FAMILIES[words[1]]
        protocol = socket.htons(PROTOCOL) if family == socket.AF_PACKET else 0
        sockets[which] = socket.socket(family, kind_of(words), protocol)
        return 0
    if verb == "pair":
        sockets[which], sockets[int(words[1])] = socket.socketpair(socket.AF_UNIX, kind_of(words))
        return 0
    sock = sockets[which]
    if verb == "accept":
        sockets[int(words[1])] = sock.accept()[0]
    elif verb == "dup":
        sockets[int(words[1])] = sock.dup()
    elif verb == "txtime":
        set_txtime(sock, key)
    elif verb == "gettxtime":
        return get_txtime(sock, key)
    elif verb == "set":
        sock.setsockopt(*OPTIONS[words[1]], int(words[2]))
    elif verb == "bind":
        sock.bind(address(words[1], sock.family))
    elif verb == "connect":
        sock.connect(address(words[1], sock.family))
    elif verb == "listen":
        sock.listen(4)
    elif verb == "name":
        return name_of(sock)
    elif verb == "close":
        sock.close()
    elif verb == "send":
        return batch(which, key) if "count" in key else send(which, key)
    elif verb == "recv":
        return receive(sock, key)
    elif verb == "wait":
        return wait(sock, key)
    elif verb == "errors":
        return errors(which, key, say)
    else:
        raise SystemExit(f"{verb} is no verb")
    return 0


def run(first, last):
    at = first
    while at < last:
        number = 1 + sum(step != "pause" for step in steps[:at])
        verb, *words = steps[at].split()
        at += 1

        def say(result, number=number, verb=verb):
            print(f"{number} {verb}: {result}", flush=True)

        if verb == "pause":
            print("pause", file=sys.stderr, flush=True)
            sys.stdin.readline()
        elif verb == "sleep":
            time.sleep(int(words[0]) / 1000)
        elif verb == "user":
            os.setresgid(*[int(words[0])] * 3)
            os.setresuid(*[int(words[0])] * 3)
            say(0)
        elif verb == "fork":
            end = steps.index("join", at)
            child = os.fork()
            if child == 0:
                run(at, end)
                sys.exit(0)
            if os.waitpid(child, 0)[1] != 0:
                sys.exit(4)
            at = end + 1
        else:
            try:
                result = act(verb, words, keys(words), say)
                if result is not None:
                    say(result)
            except OSError as error:
                say(errno.errorcode[error.errno])


run(0, len(steps))
