#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""asyncio: 50 TCP clients and a datagram endpoint on 127.0.0.1. Prints what came back."""

import asyncio


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data.upper(), address)


class Asker(asyncio.DatagramProtocol):
    def __init__(self, answer):
        self.answer = answer

    def connection_made(self, transport):
        transport.sendto(b"hello by datagram")

    def datagram_received(self, data, address):
        self.answer.set_result(data)


async def serve(reader, writer):
    while data := await reader.read(4096):
        writer.write(data[::-1])
        await writer.drain()
    writer.close()


async def ask(port, n):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"client {n:02}".encode())
    answer = await reader.readexactly(9)
    writer.close()
    await writer.wait_closed()
    return answer


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answers = await asyncio.gather(*(ask(port, n) for n in range(50)))
    print(len(answers), answers[0], answers[-1])
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    answer = loop.create_future()
    asker, _ = await loop.create_datagram_endpoint(lambda: Asker(answer),
                                                   remote_addr=echo.get_extra_info("sockname"))
    print(await asyncio.wait_for(answer, 5))
    asker.close()
    echo.close()
    server.close()


asyncio.run(main())
