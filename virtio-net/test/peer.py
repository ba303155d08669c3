# SPDX-License-Identifier: BSD-2-Clause
"""A guest in QEMU, and the other end of its network.

Frames travel as UDP datagrams on the loopback (QEMU's `dgram`), through QEMU's own network stack (`user`), or through a tap, either
QEMU's or that of a switch behind vhost-user. Nothing here judges how long something took: a guest that says nothing for QUIET_MAX
seconds has failed.
"""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time

QUIET_MAX = 120  # seconds: 8 MiB by one buffer take 5, and 30 where other programs have the CPUs
TYPE = b"\x88\xb5"
PEER = bytes.fromhex("020000000001")
FIGURES = ("instructions rx_frames interrupts wakes rx_starved rx_posted_peak tx_queued restarts buffer_octets memory_octets"
           " device_octets tx_frames rx_short interrupts_foreign options partial_frames segmented_frames pairs").split()

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


TAP, TAP_ADDRESS, GUEST_ADDRESS = "vnet0", "10.0.2.2/24", "10.0.2.15"
# A switch passes frames on as they are: it can neither finish checksums nor cut long segments.
PLAIN = ",csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"


def shared(machine):
    """The machine with memory that a backend of vhost-user can map. QEMU before 8.1 leaves a guest's fences out where only one processor is
    possible, although the backend is another program: a wake-up can be lost then. So a second processor is possible here."""
    command = list(MACHINES[machine])
    command[2] += ",memory-backend=m"
    size = command[command.index("-m") + 1]
    return [*command, "-smp", "1,maxcpus=2", "-object", f"memory-backend-memfd,id=m,size={size},share=on"]


def vhost_device(transport):
    """Properties of a device behind vhost-user. QEMU 7.2 without KVM crashes as soon as a driver turns on MSI-X there."""
    return PLAIN + (",vectors=0" if transport.startswith("pci") else "")


class Guest:
    """One run of QEMU. `device` are properties of its network device, such as "packed=on"; `before` are options in front of it; `vhost` is the socket of a vhost-user backend,
    whose other end is the tap. `greeting` is the guest's first frame, `boot` the seconds from the start of QEMU to it."""

    def __init__(self, machine, transport, program, options=(), user=False, forwards="", device="", tap_queues=0, vhost=None,
                 before=()):
        self.machine, self.user = machine, user
        qemu = MACHINES[machine]
        if tap_queues or vhost:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, int.from_bytes(TYPE, "big"))
            self.socket.bind((TAP, int.from_bytes(TYPE, "big")))
            self.at = None
            network = f"tap,id=n,ifname={TAP},script=no,downscript=no,queues={tap_queues}"
            if vhost:
                network, device = "vhost-user,id=n,chardev=c", vhost_device(transport) + device
                qemu = [*shared(machine), "-chardev", f"socket,id=c,path={vhost}"]
        else:
            network = self.open_datagrams(user, forwards)
        self.socket.settimeout(QUIET_MAX)
        # QEMU ends with this program, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", *qemu, "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", "-netdev", network, *before,
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

    def open_datagrams(self, user, forwards):
        """The socket at the other end of QEMU's `dgram`, or a client of its `user`. Returns QEMU's option."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.at = free.getsockname()
        port = self.socket.getsockname()[1]
        host = "local.type=inet,local.host=127.0.0.1,remote.type=inet,remote.host=127.0.0.1"
        return (f"user,id=n,hostfwd=udp:127.0.0.1:{self.at[1]}-:7{forwards}" if user
                else f"dgram,id=n,{host},local.port={self.at[1]},remote.port={port}")

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
        frame = self.mac + PEER + TYPE + payload
        if self.at:
            self.socket.sendto(frame, self.at)
        else:
            self.socket.send(frame)

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

    def echo_unordered(self, count, window):
        """As echo, but frames of different classes may overtake each other. Returns how many different frames came back whole."""
        back, seen = PEER + self.mac + TYPE + b"E", set()
        for number in range(count + window):
            if number >= window:
                try:
                    frame = self.receive()
                except TimeoutError:
                    break
                if frame[:15] == back and len(frame) == 60:
                    seen.add(frame[15:19])
            if number < count:
                self.send(b"E" + struct.pack("<I", number) + bytes(41))
        return len(seen)

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



def run_on_tap(machine, transport, program, device, queues, count):
    """Inside a network namespace of its own: frames and datagrams through a tap. Prints the guest's figures as JSON."""
    mode = ["multi_queue"] if int(queues) > 1 else []
    for command in (["tuntap", "add", "dev", TAP, "mode", "tap", *mode], ["address", "add", TAP_ADDRESS, "dev", TAP],
                    ["link", "set", TAP, "up"]):
        subprocess.run(["ip", *command], check=True)
    with Guest(machine, transport, program, device=device, tap_queues=int(queues)) as guest:
        echoes = guest.echo(int(count), 8) if queues == "1" else guest.echo_unordered(int(count), 8)
        frames = guest.socket
        guest.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        guest.at = (GUEST_ADDRESS, 7)
        datagrams = guest.echo_datagrams(int(count) // 10, 1000)
        guest.socket, guest.at = frames, None
        print(json.dumps(guest.figures() | {"echoes": echoes, "datagrams": datagrams}))


def on_tap(machine, transport, program, device, queues, count):
    """Figures of a guest with a tap, in user and network namespaces of its own; needs no root. The tap has checksum offload and
    several queues, which QEMU's other backends have not."""
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, __file__, machine, transport, str(program), device,
               str(queues), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    run_on_tap(*sys.argv[1:])
