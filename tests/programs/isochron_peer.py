# SPDX-License-Identifier: Apache-2.0
"""The other end of isochron's test protocol, without a clock: its link runs, and its log is empty.

In: TCP port 5000 of this namespace. Out: the word `ready`; answers until the sender closes. isochron's own receiver asks
for a hardware clock, which no veth has.
"""

import socket
import struct

LOG, LINK_STATE = 0, 42
LOG_VERSION, RUNNING, SET, RESPONSE = 4, 2, 1, 2


def read(connection, octets):
    data = b""
    while len(data) < octets:
        more = connection.recv(octets - len(data))
        if not more:
            raise SystemExit(0)
        data += more
    return data


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 5000))
listener.listen(1)
print("ready", flush=True)
connection, _ = listener.accept()
while True:
    version, action, octets = struct.unpack(">BB2xI", read(connection, 8))
    message = read(connection, octets)
    kind, what, _ = struct.unpack(">HHI", message[:8])
    if action == SET:
        value = message[8:]
    elif what == LINK_STATE:
        value = bytes([RUNNING, 0, 0, 0])
    else:
        value = struct.pack(">II", LOG_VERSION, 0) if what == LOG else b""
    reply = struct.pack(">HHI", kind, what, len(value)) + value
    connection.sendall(struct.pack(">BB2xI", version, RESPONSE, len(reply)) + reply)
