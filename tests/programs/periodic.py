#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An ordinary listener, by each way in which Python waits for datagrams: periodic.py HOW PORT.

Datagrams are numbered from 0 on (32 bits, network order); an empty one ends it. It prints how many came, and what was out of order.
"""

import asyncio
import os
import select
import selectors
import socket
import sys
import threading

how, port = sys.argv[1], int(sys.argv[2])
taken = []


def take(data):
    """Whether there is more to come."""
    if data:
        taken.append(int.from_bytes(data, "big"))
    return bool(data)


def wait_by(wait):
    """Receives without waiting after each wait."""
    sock.setblocking(False)
    while True:
        wait()
        if not take(sock.recv(100)):
            return


class Taker(asyncio.DatagramProtocol):
    def __init__(self, end):
        self.end = end

    def datagram_received(self, data, address):
        if not take(data) and not self.end.done():
            self.end.set_result(None)


async def asynchronous():
    loop = asyncio.get_running_loop()
    end = loop.create_future()
    sock.setblocking(False)
    transport, _ = await loop.create_datagram_endpoint(lambda: Taker(end), sock=sock)
    await end
    transport.close()


def receive():
    if how == "recv":
        while take(sock.recv(100)):
            pass
    elif how == "recvfrom":
        while take(sock.recvfrom(100)[0]):
            pass
    elif how == "recvmsg":
        while take(sock.recvmsg(100)[0]):
            pass
    elif how == "read":
        while take(os.read(sock.fileno(), 100)):
            pass
    elif how == "timeout":
        # Python waits by poll before each recv.
        sock.settimeout(20)
        while take(sock.recv(100)):
            pass
    elif how == "select":
        wait_by(lambda: select.select([sock], [], []))
    elif how == "poll":
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        wait_by(poll.poll)
    elif how == "selectors":
        selector = selectors.DefaultSelector()
        selector.register(sock, selectors.EVENT_READ)
        wait_by(selector.select)
    elif how == "asyncio":
        asyncio.run(asynchronous())
    elif how == "thread":
        thread = threading.Thread(target=lambda: all(iter(lambda: take(sock.recv(100)), False)))
        thread.start()
        thread.join()
    else:
        raise SystemExit(f"{how} is no way to wait")


sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", port))
receive()
if taken != list(range(len(taken))):
    print("out of order:", taken)
print("received", len(taken))
