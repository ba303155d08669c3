#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls of SO_TXTIME, and what a program sees of each.

In: a clock (tai, monotonic) and a destination that takes datagrams on PORT and PORT + 1. Out: a line `CELL: what was seen` for each call. What
depends on a machine's speed is left out: times are a second ahead, or past.
"""

import errno
import os
import select
import socket
import struct
import sys
import threading
import time

SO_TXTIME = SCM_TXTIME = 61
SO_TIMESTAMPING = 37
ORIGIN_TXTIME, ORIGIN_TIMESTAMPING = 6, 4
DEADLINE_MODE, REPORT_ERRORS = 1, 2
RECVERR = {(socket.SOL_IP, 11): "IP_RECVERR", (socket.IPPROTO_IPV6, 25): "IPV6_RECVERR"}
PORT = 7000
MS = 1_000_000
SECOND = 1000 * MS
# After a time that lies ahead: what was sent has left, and what is reported is there.
AFTER = 1.6
NEVER = (1 << 64) - 1


class Calls:
    """The calls with one clock, to one destination."""

    def __init__(self, clock, destination):
        self.clock = {"tai": time.CLOCK_TAI, "monotonic": time.CLOCK_MONOTONIC}[clock]
        self.to = (destination, PORT)
        self.asked = {}

    def now(self):
        return time.clock_gettime_ns(self.clock)

    def socket(self, flags=REPORT_ERRORS, is_blocking=False, family=socket.AF_INET):
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.setblocking(is_blocking)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6)
        made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", self.clock, flags))
        return made

    def send(self, sender, ahead, name, to=None, more=(), octets=None):
        """Sends the datagram `name` for `ahead` ns from now, or at an absolute time in a tuple. What sendmsg returns, or errno."""
        at = ahead[0] if isinstance(ahead, tuple) else self.now() + ahead
        self.asked[sender.fileno()] = at
        control = [(socket.SOL_SOCKET, SCM_TXTIME, struct.pack("Q", at)), *more]
        data = name.encode() if octets is None else name.encode().ljust(octets, b".")[:octets]
        return tried(lambda: sender.sendmsg([data], control, 0, *([] if to == () else [to or self.to])))

    def send_first(self, sender, *what, **more):
        """The same as a socket's first datagram: the call waits where the kernel's need not, until ktsnd knows the socket."""
        sender.setblocking(True)
        try:
            return self.send(sender, *what, **more)
        finally:
            sender.setblocking(False)

    def seen(self, sender, wait=AFTER):
        """What comes to the error queue within `wait` seconds, and what poll says of it."""
        told, end = [], time.monotonic() + wait
        while events := polled(sender, end - time.monotonic()):
            told += [f"poll {events:#x}"] if not told else []
            while not isinstance(entry := self.report(sender), str):
                told.append(self.entry(sender, entry))
        return ", ".join([*told, self.report(sender)])

    def report(self, sender):
        """The next entry of the error queue, or an errno."""
        return tried(lambda: sender.recvmsg(70_000, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT))

    def entry(self, sender, entry):
        """An entry of the error queue in words."""
        data, controls, flags, _ = entry
        words = [f"{len(data)} octets", f"flags {flags:#x}"]
        for level, kind, content in controls:
            name = RECVERR.get((level, kind))
            if name is None:
                words.append(f"{level}/{kind} of {len(content)}")
                continue
            number, origin, of, code, _, info, more = struct.unpack("=IBBBBII", content[:16])
            words.append(f"{name} {word(number)} origin {origin} type {of} code {code}")
            if origin == ORIGIN_TXTIME:
                words.append("its time" if (more << 32 | info) == self.asked[sender.fileno()] else "another time")
            elif origin == ORIGIN_TIMESTAMPING:
                words.append(f"stamp {info}")
        return " ".join(words)


def word(number):
    """An errno's name."""
    return errno.errorcode.get(number, str(number))


def polled(sender, seconds):
    """What poll says of the socket within this time: 0 if nothing."""
    poll = select.poll()
    poll.register(sender, select.POLLIN)
    return sum(bits for _, bits in poll.poll(max(0, seconds * 1000)))


def tried(call):
    """What a call returns, or the name of its errno."""
    try:
        return call()
    except OSError as error:
        return word(error.errno)


def options(calls):
    """What setsockopt and getsockopt say."""
    def answer(value):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            return tried(lambda: one.setsockopt(socket.SOL_SOCKET, SO_TXTIME, value)), one.getsockopt(socket.SOL_SOCKET, SO_TXTIME, 8).hex()
    for name, value in (("4 octets", struct.pack("i", calls.clock)), ("12 octets", struct.pack("iII", calls.clock, 0, 0)), ("0 octets", b""),
                        ("an unknown flag", struct.pack("iI", calls.clock, 4)), ("an unknown clock", struct.pack("iI", 99, 0)),
                        ("CLOCK_REALTIME", struct.pack("iI", time.CLOCK_REALTIME, 0)), ("both flags", struct.pack("iI", calls.clock, 3))):
        yield f"setsockopt with {name}", answer(value)
    with calls.socket() as one:
        yield "getsockopt with 4 octets", one.getsockopt(socket.SOL_SOCKET, SO_TXTIME, 4).hex()
        yield "getsockopt with 16 octets", one.getsockopt(socket.SOL_SOCKET, SO_TXTIME, 16).hex()
        yield "SCM_TXTIME of 4 octets", tried(lambda: one.sendmsg([b"x"], [(socket.SOL_SOCKET, SCM_TXTIME, b"1234")], 0, calls.to))
        yield "SCM_TXTIME of 12 octets", tried(lambda: one.sendmsg([b"x"], [(socket.SOL_SOCKET, SCM_TXTIME, b"123412341234")], 0, calls.to))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        yield "SCM_TXTIME without SO_TXTIME", calls.send_first(one, SECOND, "no option")


def times(flags, words):
    """Times, each on a socket of its own with these flags."""
    def group(calls):
        for name, ahead in (("1 s ahead", SECOND), ("1 s ago", -SECOND), ("1 ms ago", -MS), ("the time 0", (0,)), ("the time 1", (1,)), ("the time 2^63", (1 << 63,))):
            with calls.socket(flags) as one:
                yield f"{name}{words}", (calls.send_first(one, ahead, f"{name}{words}"), calls.seen(one, AFTER if ahead == SECOND else 0.5))
    return group


def odd_times(calls):
    """Times that no clock shows soon, and none."""
    for name, ahead in (("20 s ahead", 20 * SECOND), ("the time 2^64-1", (NEVER,))):
        with calls.socket() as one:
            yield name, (calls.send_first(one, ahead, name), calls.seen(one, 0.5))
    with calls.socket() as one:
        yield "no SCM_TXTIME on a socket with SO_TXTIME", (tried(lambda: one.sendto(b"no time", calls.to)), calls.seen(one, 0.5))


def orders(calls):
    """Several datagrams; what arrives, and in which order, is the receiver's to say."""
    with calls.socket() as one:
        begin = calls.now() + 2 * SECOND
        sent = [calls.send_first(one, (begin + more * MS,), f"in turn {more}") for more in (0, 100, 200)]
        yield "three times in turn", (sent, calls.seen(one, AFTER + 1.3))
    with calls.socket() as one, calls.socket() as other:
        begin = calls.now() + 2 * SECOND
        sent = [calls.send_first(one, (begin + 300 * MS,), "second of two sockets"), calls.send_first(other, (begin,), "first of two sockets")]
        yield "two sockets, the later one first", (sent, calls.seen(one, AFTER + 1.4), calls.seen(other, 0))
    with calls.socket() as one:
        at = calls.now() + 2 * SECOND
        yield "one time three times", ([calls.send_first(one, (at,), f"same {number}") for number in range(3)], calls.seen(one, AFTER + 1))
    one = calls.socket()
    yield "closed before its time", (calls.send_first(one, SECOND, "closed"), one.close())


def shapes(calls):
    """Sizes and connected sockets."""
    for octets in (0, 1, 1472, 65_508):
        with calls.socket() as one:
            yield f"{octets} octets", (calls.send_first(one, SECOND, f"{octets} octets", octets=octets), calls.seen(one))
    with calls.socket() as one:
        one.connect(calls.to)
        yield "connected", (calls.send_first(one, SECOND, "connected", ()), calls.seen(one))
    with calls.socket() as one:
        one.connect(calls.to)
        other = (calls.to[0], PORT + 1)
        yield "connected, with another name", (calls.send_first(one, SECOND, "another name", other), calls.seen(one))
    with calls.socket() as one:
        yield "not connected, without a name", calls.send_first(one, SECOND, "no name", ())


def descriptors(calls):
    """Duplicates, a blocking socket, options that change."""
    with calls.socket(is_blocking=True) as one:
        yield "a blocking socket", (calls.send_first(one, SECOND, "blocking"), calls.seen(one))
    with calls.socket() as one, socket.socket(fileno=os.dup(one.fileno())) as other:
        yield "a duplicate", (calls.send_first(other, SECOND, "duplicate"), calls.seen(other), calls.seen(one, 0))
    with calls.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", calls.clock, 0))
        yield "reports switched off again", (calls.send_first(one, -SECOND, "off again"), calls.seen(one, 0.5))
    with calls.socket() as one:
        sent = calls.send_first(one, -SECOND, "then read")
        yield "recv beside a report", (sent, polled(one, 0.5), tried(lambda: one.recv(10)), one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    with calls.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        taken = [calls.send_first(one, SECOND, "full"), *(calls.send(one, SECOND, "full", octets=1000) for _ in range(20))]
        yield "a small SO_SNDBUF", (taken[0], taken[-1], calls.seen(one))


def destinations(calls):
    """Where the kernel says something of the destination."""
    for name, to in (("loopback", "127.0.0.1"), ("broadcast without SO_BROADCAST", "255.255.255.255"), ("a host that does not answer", calls.to[0].rsplit(".", 1)[0] + ".77"),
                     ("a network without a route", "203.0.113.9"), ("a group without a route", "239.1.1.1"), ("port 0", None)):
        with calls.socket() as one:
            yield name, (calls.send_first(one, SECOND, name, (to, PORT) if to else (calls.to[0], 0)), calls.seen(one))


def stamps(calls):
    """SO_TIMESTAMPING beside a transmit time."""
    for name, bits in (("software stamp", 1 << 1 | 1 << 4), ("stamps of both kinds, numbered", 1 << 1 | 1 << 4 | 1 << 7 | 1 << 8), ("a stamp alone", 1 << 1 | 1 << 4 | 1 << 11)):
        with calls.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("I", bits))
            yield name, (calls.send_first(one, SECOND, name), calls.seen(one))


def child(act):
    """What a forked process got."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(act()).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()


GROUPS = (options, times(REPORT_ERRORS, ""), times(0, ", without reports"), times(DEADLINE_MODE | REPORT_ERRORS, ", deadline mode"),
          times(DEADLINE_MODE, ", deadline mode without reports"), odd_times, orders, shapes, descriptors, destinations, stamps)


def main():
    calls, cells = Calls(sys.argv[1], sys.argv[2]), {}
    # The neighbour is known before anything counts. No thread runs yet beside the one that forks.
    with calls.socket() as one:
        calls.send_first(one, SECOND, "begin")
        calls.seen(one)
    with calls.socket() as one:
        cells["a child's send"] = child(lambda: calls.send_first(one, SECOND, "child")), calls.seen(one)
    threads = [threading.Thread(target=lambda group=group: cells.update(group(calls))) for group in GROUPS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, seen in cells.items():
        print(f"{name}: {seen}")


if __name__ == "__main__":
    main()
