#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the datagrams that arrive on the ports of calls.py, each by its text, a line each, in the order of their arrival. Ends with SIGTERM."""

import select
import socket

PORTS = (7000, 7001)


def main():
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in PORTS]
    for one, port in zip(sockets, PORTS):
        one.bind(("0.0.0.0", port))
    print("ready", flush=True)
    while True:
        for one in select.select(sockets, [], [])[0]:
            data, _ = one.recvfrom(70_000)
            print(f"{one.getsockname()[1]} {len(data)} {data[:60].decode(errors='replace').rstrip('.')}", flush=True)


if __name__ == "__main__":
    main()
