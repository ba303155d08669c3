# SPDX-License-Identifier: BSD-2-Clause
"""A guest in QEMU, and the other end of its network.

Frames travel as UDP datagrams on the loopback (QEMU's `dgram`), or through QEMU's own network stack (`user`). Nothing here judges how
long something took: a guest that says nothing for QUIET_MAX seconds has failed.
"""

import contextlib
import socket
import struct
import subprocess
import time

QUIET_MAX = 20
TYPE = b"\x88\xb5"
PEER = bytes.fromhex("020000000001")
FIGURES = ("instructions rx_frames interrupts wakes rx_starved rx_posted_peak tx_queued restarts buffer_octets memory_octets"
           " device_octets tx_frames rx_short interrupts_foreign options").split()

MACHINES = {
    "riscv64": ["qemu-system-riscv64", "-M", "virt", "-bios", "none", "-m", "16M"],
    "aarch64": ["qemu-system-aarch64", "-M", "virt,highmem=off,gic-version=2", "-cpu", "cortex-a53", "-m", "16M", "-semihosting"],
    "i386": ["qemu-system-i386", "-M", "pc", "-m", "32M", "-device", "isa-debug-exit,iobase=0xf4"],
}
GOOD_STATUS = {"riscv64": 0, "aarch64": 0, "i386": 1}  # isa-debug-exit ends with 2 × status + 1
TRANSPORTS = {
    "mmio 1": ["-device", "virtio-net-device,netdev=n"],
    "mmio 2": ["-global", "virtio-mmio.force-legacy=false", "-device", "virtio-net-device,netdev=n"],
    "pci legacy": ["-device", "virtio-net-pci,netdev=n,disable-modern=on,disable-legacy=off"],
    "pci modern": ["-device", "virtio-net-pci,netdev=n,disable-modern=off,disable-legacy=on"],
}


class Guest:
    """One run of QEMU. `device` are properties of its network device, such as "packed=on". `greeting` is the guest's first frame, `boot` the seconds from the start of QEMU to it."""

    def __init__(self, machine, transport, program, options=(), user=False, forwards="", device=""):
        self.machine, self.user = machine, user
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(QUIET_MAX)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.at = free.getsockname()
        port = self.socket.getsockname()[1]
        host = "local.type=inet,local.host=127.0.0.1,remote.type=inet,remote.host=127.0.0.1"
        network = (f"user,id=n,hostfwd=udp:127.0.0.1:{self.at[1]}-:7{forwards}" if user
                   else f"dgram,id=n,{host},local.port={self.at[1]},remote.port={port}")
        command = [*MACHINES[machine], "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", "-netdev", network,
                   *TRANSPORTS[transport][:-1], TRANSPORTS[transport][-1] + device, *options, "-kernel", str(program)]
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            self.greeting = None if user else self.receive()
        except TimeoutError:
            self.close()
            raise RuntimeError(f"no first frame; the guest said: {self.said!r}") from None
        self.boot = time.monotonic() - begin
        if self.greeting:
            assert self.greeting[12:15] == TYPE + b"H", self.greeting
            self.mac, self.nanoseconds = self.greeting[6:12], struct.unpack_from("<Q", self.greeting, 16)[0]
            assert self.greeting[24:].split(b"\0")[0].decode() == transport, f"another transport: {self.greeting[24:]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.stdout.closed:
            return
        self.process.kill()
        self.said = self.process.communicate()[0].decode(errors="replace")
        self.socket.close()

    def said_so_far(self):
        """What the guest has printed; ends the guest."""
        self.close()
        return repr(self.said)

    def receive(self):
        return self.socket.recv(4096)

    def send(self, payload):
        self.socket.sendto(self.mac + PEER + TYPE + payload, self.at)

    def figures(self):
        """The guest's counters, as a dictionary. Every frame before must have come back."""
        self.send(b"S" + bytes(200))
        frame = self.receive()
        assert frame[14:15] == b"S", f"expected the figures: {frame[:20]}"
        return dict(zip(FIGURES, struct.unpack_from(f"<{len(FIGURES)}Q", frame, 16)))

    def echo(self, count, window, octets=60, operation=b"E"):
        """Sends `count` frames, `window` at a time under way. Returns how many came back whole and in order."""
        filler = bytes(octets - 14 - 5)
        back = PEER + self.mac + TYPE + operation
        for number in range(min(window, count)):
            self.send(operation + struct.pack("<I", number) + filler)
        for number in range(count):
            try:
                frame = self.receive()
            except TimeoutError:
                return number
            if frame[:15] != back or len(frame) != octets or struct.unpack_from("<I", frame, 15)[0] != number:
                return number
            if number + window < count:
                self.send(operation + struct.pack("<I", number + window) + filler)
        return count

    def echo_datagrams(self, count, octets):
        """UDP through QEMU's own stack, one at a time. The first may be lost: it is sent until it comes back."""
        self.socket.settimeout(0.2)
        for _ in range(int(QUIET_MAX / 0.2)):
            with contextlib.suppress(TimeoutError):
                self.socket.sendto(b"first", self.at)
                self.receive()
                break
        else:
            return 0
        with contextlib.suppress(TimeoutError):
            while True:  # what was sent in vain comes now
                self.receive()
        self.socket.settimeout(QUIET_MAX)
        for number in range(count):
            data = struct.pack("<I", number) + bytes(octets - 4)
            self.socket.sendto(data, self.at)
            try:
                if self.receive() != data:
                    return number
            except TimeoutError:
                return number
        return count

    def quit(self):
        """Ends the guest. Returns whether it was content, and had restarted nothing."""
        self.send(b"Q" + bytes(50))
        try:
            return self.process.wait(QUIET_MAX) == GOOD_STATUS[self.machine]
        except subprocess.TimeoutExpired:
            return False

