# SPDX-License-Identifier: BSD-2-Clause
"""A guest with FreeRTOS and lwIP in QEMU, and what talks to it: frames, ARP, ICMP, UDP and TCP.

The guest's settings are its command line. Its console has lines of JSON; `said` waits for one of them.
"""

import array
import json
import os
import select
import socket
import struct
import subprocess
import tempfile
import time

import peer

PORTS = {"echo": 7, "sink": 9, "source": 19}
GUEST_ADDRESS, PEER_ADDRESS = bytes((10, 0, 2, 15)), bytes((10, 0, 2, 2))
MESSAGE = 1448
# The same machines under an installed RTEMS: more memory, and its options of the console.
peer.MACHINES |= {
    "rtems-riscv64": ["qemu-system-riscv64", "-M", "virt", "-bios", "none", "-m", "128M"],
    "rtems-i386": ["qemu-system-i386", "-M", "pc", "-m", "128M", "-append", "--video=off --console=/dev/com1 --printk=/dev/com1"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def content(octets):
    """The known content of a TCP stream (services.c)."""
    words = array.array("I", ((word * 2654435761) & 0xFFFFFFFF for word in range((octets + 3) // 4)))
    return words.tobytes()[:octets]


def checksum(data):
    """The Internet checksum."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(protocol, payload):
    """An IPv4 packet from the peer to the guest."""
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0, PEER_ADDRESS, GUEST_ADDRESS)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


class Guest(peer.Guest):
    """`settings` as in settings.c. With `user` QEMU's own network stack is between, with `vhost` a switch and a tap; else frames come as
    datagrams. `more` are further options of QEMU."""

    def __init__(self, machine, transport, program, settings="", user=False, more=(), device="", vhost=None):
        self.lines, self.rest, self.others = [], b"", []
        self.longest = 0  # of the frames that `ask` saw
        self.directory = tempfile.TemporaryDirectory()
        self.control = f"{self.directory.name}/qmp"
        options = ["-qmp", f"unix:{self.control},server=on,wait=off", *more]
        if settings:
            options += ["-append", settings]
        self.ports = {name: (peer.GUEST_ADDRESS, port) if vhost else ("127.0.0.1", free_port()) for name, port in PORTS.items()}
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{self.ports[name][1]}-:{port}" for name, port in PORTS.items())
        super().__init__(machine, transport, program, options, user, forwards, device, vhost=vhost)
        try:
            self.ready = self.said("ready")
        except BaseException:
            self.close()
            raise

    def close(self):
        super().close()
        self.directory.cleanup()

    def receive(self):
        """The next frame of the tests' type; others are kept."""
        while True:
            frame = super().receive()
            if self.user or frame[12:14] == peer.TYPE:
                return frame
            self.others.append(frame)

    def quit(self):
        """As peer.Guest.quit. Whether RTEMS can switch the machine off is the BSP's affair, so there the figures alone decide."""
        if self.machine.startswith("rtems-"):
            return self.figures()["restarts"] == 0
        return super().quit()

    def said(self, kind):
        """The next line of this kind on the console, as a dictionary."""
        deadline = time.monotonic() + peer.QUIET_MAX
        while True:
            for index, line in enumerate(self.lines):
                if line["guest"] == kind:
                    return self.lines.pop(index)
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"the guest did not say {kind!r}: {self.said_so_far()}")
            read = os.read(self.process.stdout.fileno(), 65536)
            if not read:
                raise RuntimeError(f"the guest ended before it said {kind!r}: {self.rest!r} {self.said_so_far()}")
            *lines, self.rest = (self.rest + read).split(b"\n")
            self.lines += [json.loads(line) for line in lines if line.startswith(b"{")]
            self.rest = b"\n".join([line for line in lines if not line.startswith(b"{")][-20:] + [self.rest])

    def command(self, *commands):
        """Commands for QEMU, each a dictionary."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(peer.QUIET_MAX)
            control.connect(self.control)
            with control.makefile("rwb", buffering=0) as stream:
                stream.readline()
                for command in ({"execute": "qmp_capabilities"}, *commands):
                    stream.write(json.dumps(command).encode() + b"\n")
                    while b'"event"' in (answer := stream.readline()):
                        pass
                    assert b'"return"' in answer, answer

    def ask(self, kind, payload, accept):
        """Sends a frame of Ethertype `kind` until a frame comes that `accept` likes. Returns that frame's payload."""
        frame = self.mac + peer.PEER + struct.pack(">H", kind) + payload
        self.socket.sendto(frame.ljust(60, b"\0"), self.at)
        while True:
            answer = self.socket.recv(4096)
            self.longest = max(self.longest, len(answer))
            if answer[:6] == peer.PEER and answer[12:14] == struct.pack(">H", kind) and accept(answer[14:]):
                return answer[14:]
            if answer[12:14] == b"\x08\x06" and answer[20:22] == b"\0\1" and answer[38:42] == PEER_ADDRESS:
                reply = struct.pack(">HHBBH", 1, 0x800, 6, 4, 2) + peer.PEER + PEER_ADDRESS + self.mac + GUEST_ADDRESS
                self.socket.sendto((self.mac + peer.PEER + b"\x08\x06" + reply).ljust(60, b"\0"), self.at)

    def ask_address(self):
        """ARP. Returns the MAC address that the guest answers with."""
        request = struct.pack(">HHBBH", 1, 0x800, 6, 4, 1) + peer.PEER + PEER_ADDRESS + bytes(6) + GUEST_ADDRESS
        answer = self.ask(0x806, request, lambda arp: arp[6:8] == b"\0\2" and arp[14:18] == GUEST_ADDRESS)
        return answer[8:14]

    def ping(self, number, octets):
        """An ICMP echo. Returns whether the answer is whole."""
        data = os.urandom(octets)
        head = struct.pack(">BBHHH", 8, 0, 0, 77, number)
        message = head[:2] + struct.pack(">H", checksum(head + data)) + head[4:] + data
        packet = self.ask(0x800, ip(1, message), lambda packet: packet[9] == 1 and packet[20] == 0)
        length = struct.unpack_from(">H", packet, 2)[0]
        icmp = packet[20:length]
        return checksum(packet[:20]) == 0 and checksum(icmp) == 0 and icmp[4:8] == head[4:] and icmp[8:] == data

    def ask_segment(self):
        """Opens a TCP connection to the echo service by hand. Returns the longest segment that the guest announces."""
        head = struct.pack(">HHIIBBHHHBBH", 40000, PORTS["echo"], 1, 0, 6 << 4, 2, 65535, 0, 0, 2, 4, 1460)  # SYN, MSS 1460
        pseudo = PEER_ADDRESS + GUEST_ADDRESS + struct.pack(">HH", 6, len(head))
        head = head[:16] + struct.pack(">H", checksum(pseudo + head)) + head[18:]
        packet = self.ask(0x800, ip(6, head), lambda packet: packet[9] == 6 and packet[33] == 0x12)
        kind, octets, segment = struct.unpack_from(">BBH", packet, 40)
        assert (kind, octets) == (2, 4), f"the first option is no segment size: {packet[40:44]}"
        return segment

    def connect(self, service):
        connection = socket.create_connection(self.ports[service], timeout=peer.QUIET_MAX)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def fill(self, octets, data=None):
        """Sends octets to the sink. Returns what the guest says about them."""
        with self.connect("sink") as connection:
            connection.sendall(data or content(octets))
            assert connection.recv(1) == b"+", "the sink did not answer"
        return self.said("sink")

    def drain(self, octets):
        """Takes octets from the source. Returns them, and what the guest says."""
        parts = []
        with self.connect("source") as connection:
            connection.sendall(struct.pack("<Q", octets))
            while part := connection.recv(1 << 18):
                parts.append(part)
        return b"".join(parts), self.said("source")

    def ping_pong(self, count, octets):
        """Round trips of one TCP connection. Returns their seconds; raises if an answer is wrong."""
        times = []
        with self.connect("echo") as connection:
            for number in range(count):
                message = bytes([number & 0xFF]) * octets
                begin = time.perf_counter()
                connection.sendall(message)
                answer = connection.recv(octets, socket.MSG_WAITALL)
                times.append(time.perf_counter() - begin)
                assert answer == message, f"answer {number} has {len(answer)} octets or another content"
        return times


def fail(machine, transport, program, settings=""):
    """Runs a guest that cannot start. Returns its exit status and what it said."""
    options = ["-append", settings] if settings else []
    device = [] if transport is None else ["-netdev", "user,id=n", *peer.TRANSPORTS[transport]]
    command = [*peer.MACHINES[machine], "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", *device, *options,
               "-kernel", str(program)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=peer.QUIET_MAX)
    return done.returncode, done.stdout
