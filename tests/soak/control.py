# SPDX-License-Identifier: Apache-2.0
"""Attach and Detach of ktsnd's control API, without a gRPC library.

In: a run directory and a request. Out: whether ktsnd answered, and with what. Everything else is asked with `ktsn status --json`.
One call is one connection: HTTP/2 with three headers that are never compressed, and one frame of data each way.
"""

import socket
import struct

SECONDS_MAX = 5.0
HEADERS, DATA, SETTINGS, GO_AWAY, RESET = 1, 0, 4, 7, 3
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def _varint(number):
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes(octets) + bytes([number])


def text(field, value):
    """A string, or an encoded message, as protobuf writes it."""
    octets = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(octets)) + octets


def _frame(kind, flags, stream, body):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _header(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(run_dir, method, message):
    """True: done; False: ktsnd refused. Raises OSError (also TimeoutError) when it does not answer within 5 s."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(SECONDS_MAX)
        stream.connect(f"{run_dir}/ktsnd.sock")
        # :method POST and :scheme http are entries 3 and 6 of the static table.
        head = b"\x83\x86" + b"".join(_header(name, value) for name, value in (
            (b":path", f"/ktsn.v1.Node/{method}".encode()), (b":authority", b"ktsnd"), (b"te", b"trailers"),
            (b"content-type", b"application/grpc")))
        body = b"\0" + struct.pack(">I", len(message)) + message
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b"") +
                       _frame(HEADERS, END_HEADERS, 1, head) + _frame(DATA, END_STREAM, 1, body))
        return _answered(stream)


def _answered(stream):
    """Only a call that was done has data; a refusal is headers alone."""
    has_data = False
    while True:
        length, kind, flags, number_of = struct.unpack(">IBBI", b"\0" + _exactly(stream, 9))
        _exactly(stream, length)
        if kind == SETTINGS and not flags & ACK:
            stream.sendall(_frame(SETTINGS, ACK, 0, b""))
        if number_of == 1:
            has_data |= kind == DATA
            if kind == RESET or flags & END_STREAM:
                return has_data
        elif kind == GO_AWAY:
            return has_data


def _exactly(stream, count):
    octets = b""
    while len(octets) < count:
        more = stream.recv(count - len(octets))
        if not more:
            raise ConnectionError("ktsnd closed the connection")
        octets += more
    return octets
