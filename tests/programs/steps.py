#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The steps (steps.h) where Python itself makes a difference: its own sends, option buffers, poll, error queue and fork.

The same words in, the same lines out; what differs in the kernel alone is C's to test.
"""

import errno
import os
import select
import socket
import struct
import sys
import time

SO_TXTIME, SO_TIMESTAMPING, CLOCK_TAI, MSG_ERRQUEUE = 61, 37, 11, 0x2000
CLOCKS = {"tai": CLOCK_TAI, "mono": time.CLOCK_MONOTONIC, "real": time.CLOCK_REALTIME}
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

sockets, asked, steps = {}, {}, [step for step in sys.argv[1:]]


def address(text):
    host, _, port = text.rpartition(",")
    return host, int(port)


def keys(words):
    return dict(word.split("=", 1) for word in words if "=" in word)


def instant(text):
    clock, _, when = text.partition(":")
    if when[0] == "=":
        return int(when[1:])
    return time.clock_gettime_ns(CLOCKS[clock]) + int(when)


def set_txtime(sock, key):
    clock = key.get("clock", "tai")
    value = struct.pack("=iI24x", CLOCKS[clock] if clock in CLOCKS else int(clock), int(key.get("flags", 0)))
    sock.setsockopt(socket.SOL_SOCKET, SO_TXTIME, value[:int(key.get("len", 8))])


def get_txtime(sock, key):
    # getsockopt of Python returns the octets that the kernel filled.
    value = sock.getsockopt(socket.SOL_SOCKET, SO_TXTIME, int(key.get("len", 8)))
    clock, flags = struct.unpack("=iI", value)
    return f"{len(value)} octets, clock {clock} flags {flags:x}"


def send(which, key):
    sock = sockets[which]
    letter = key.get("fill", "a").encode()
    parts = [letter * int(size) for size in key.get("size", "10").split("+")]
    to = (address(key["to"]),) if "to" in key else ()
    via = key.get("via", "sendmsg")
    if via == "send":
        return sock.send(parts[0])
    if via == "sendto":
        return sock.sendto(parts[0], *to)
    if via == "write":
        return os.write(sock.fileno(), parts[0])
    if via == "writev":
        return os.writev(sock.fileno(), parts)
    items = []
    if "tx" in key:
        asked[which] = instant(key["tx"])
        items.append((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=Q", asked[which])))
    return sock.sendmsg(parts, items, 0, *to)


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
        report = (" its-time" if more << 32 | info == wanted else " another-time") if origin == 6 else ""
        return f" error({level}.{kind} {errno.errorcode[error]} origin={origin} type={what} code={code}{report})"
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


def act(verb, words, key, say):
    """One step on a socket; what to print."""
    which = int(words[0])
    if verb == "socket":
        sockets[which] = socket.socket(FAMILIES[words[1]], socket.SOCK_DGRAM)
        return 0
    sock = sockets[which]
    if verb == "txtime":
        set_txtime(sock, key)
    elif verb == "gettxtime":
        return get_txtime(sock, key)
    elif verb == "set":
        sock.setsockopt(socket.SOL_SOCKET, {"stamping": SO_TIMESTAMPING}[words[1]], int(words[2]))
    elif verb == "bind":
        sock.bind(address(words[1]))
    elif verb == "connect":
        sock.connect(address(words[1]))
    elif verb == "name":
        return name_of(sock)
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
