#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The smallest program that asks for transmit times: send.py ADDRESS PORT COUNT, one datagram a millisecond.

It uses the kernel's own interface, SO_TXTIME, and nothing of KTSN. Run it by `ktsn run`.
"""

import socket
import struct
import sys
import time

SO_TXTIME = SCM_TXTIME = 61  # asm-generic/socket.h
PERIOD, LEAD = 1_000_000, 500_000  # ns; a datagram is sent LEAD before its transmit time

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# struct sock_txtime: the clock of the times, and flags (SOF_TXTIME_…: none).
sender.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", time.CLOCK_TAI, 0))


def now():
    return time.clock_gettime_ns(time.CLOCK_TAI)


at = (now() // PERIOD + 20) * PERIOD
for number in range(count):
    time.sleep(max(0, at - LEAD - now()) / 1e9)
    when = [(socket.SOL_SOCKET, SCM_TXTIME, struct.pack("Q", at))]
    sender.sendmsg([b"%d" % number], when, 0, (address, port))
    at += PERIOD
