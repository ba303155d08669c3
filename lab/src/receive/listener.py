# SPDX-License-Identifier: Apache-2.0
"""The Python listener of `ktsn bench receive`: an ordinary program, blocking in recvfrom or in epoll.

In: an address, a number of datagrams. Out: one row per datagram (CSV as `ktsn listen --records` writes it) and counts as
JSON. CLOCK_TAI is read right after the call returned. SIGTERM ends it.
"""

import argparse
import json
import os
import select
import signal
import socket
import time


class Stop(Exception):
    """SIGTERM or SIGINT came."""


def stop(_signal, _frame):
    raise Stop


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("local")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--wait", choices=["recv", "epoll"], default="recv")
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--fifo", type=int)
    for name in ["--records", "--json"]:
        parser.add_argument(name, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    return parser.parse_args()


def place(args):
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    if args.fifo is not None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(args.fifo))


def hear(args, receiver, epoll, heard):
    """Appends instant, payload and CPU time of each datagram."""
    tai = time.CLOCK_TAI
    while len(heard) < args.count:
        if epoll is not None:
            for _descriptor, _events in epoll.poll():
                payload = receiver.recv(2048)
                heard.append((time.clock_gettime_ns(tai), payload, time.thread_time_ns()))
        else:
            payload = receiver.recv(2048)
            heard.append((time.clock_gettime_ns(tai), payload, time.thread_time_ns()))


def main():
    args = arguments()
    address, port = args.local.rsplit(":", 1)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind((address, int(port)))
    epoll = None
    if args.wait == "epoll":
        epoll = select.epoll()
        epoll.register(receiver.fileno(), select.EPOLLIN)
    place(args)
    heard, ended = [], "count"
    try:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        os.write(args.ready_fd, b"ready\n")
        hear(args, receiver, epoll, heard)
    except Stop:
        ended = "stopped"
    write(args, heard, ended)


def write(args, heard, ended):
    rows, foreign = [], 0
    for at, payload, _cpu in heard:
        if len(payload) < 16:
            foreign += 1
            continue
        sequence, tx_time = (int.from_bytes(payload[i : i + 8], "big") for i in (0, 8))
        rows.append((sequence, tx_time, at))
    first, last = (heard[0], heard[-1]) if heard else ((0, b"", 0), (1, b"", 0))
    distinct = {(sequence, tx_time) for sequence, tx_time, _at in rows}
    greatest, reordered, seen = None, 0, set()
    for sequence, tx_time, _at in rows:
        if (tx_time, sequence) in seen:
            continue
        seen.add((tx_time, sequence))
        reordered += greatest is not None and (tx_time, sequence) < greatest
        greatest = (tx_time, sequence) if greatest is None else max(greatest, (tx_time, sequence))
    with open(args.records, "w", encoding="ascii") as out:
        out.write("sequence,tx_time,kernel_at,received_at\n")
        out.writelines(f"{sequence},{tx_time},,{at}\n" for sequence, tx_time, at in rows)
    summary = {
        "ended": ended,
        "frames_received": len(rows),
        "duplicates": len(rows) - len(distinct),
        "reordered": reordered,
        "foreign": foreign,
        "unrecorded": 0,
        "cpu_ratio": (last[2] - first[2]) / max(last[0] - first[0], 1),
        "clock_stepped": False,
    }
    with open(args.json, "w", encoding="ascii") as out:
        json.dump(summary, out)


main()
