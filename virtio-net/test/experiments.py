#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The paper's experiments: TCP bandwidth and round trips of a FreeRTOS guest with this driver, beside a Linux guest.

Both guests are i386 machines `pc` with the same QEMU device, by turns. Behind it is QEMU's own network stack (`user`), which waits for a
guest's buffer, or DPDK's testpmd and a tap of this machine's own network stack (`vhost-user`), which polls and drops. This program measures one round, and prints a line of JSON for each step, for what it ran on, and for each run. `ktsn bench rtos`
starts it, judges its figures and writes results and report. All times are taken on this side, with one clock for both guests.

Exit status: 0 done; 1 a guest failed; 2 wrong usage; 3 not possible here (the last line says what is missing and how to get it).

Examples:
  virtio-net/test/experiments.py --out out/bench/rtos --quick
  virtio-net/test/experiments.py --out out/bench/rtos --backend user --guest freertos --posted 1,8,255
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import linux_build  # noqa: E402
import peer  # noqa: E402
import rtos_build  # noqa: E402
import rtos_peer  # noqa: E402
import testpmd  # noqa: E402

TRANSPORT = "pci legacy"  # the paper's
GUESTS = ("freertos", "linux")
BACKENDS = ("user", "vhost-user")
KIB = 1024
BUFFER_OCTETS = 1536  # VNET_BUFFER_OCTETS
HELD_MAX, TX_MAX = 16, 32  # the guest's own defaults (ports/guest/guest.c)
WARM_UP = {"trips": 1000, "octets": 8 << 20}  # QEMU translates the guest's code meanwhile
LINUX_MEMORY = "128M"
LINUX_LINE = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off tsc=reliable"
peer.MACHINES["linux-i386"] = ["qemu-system-i386", "-M", "pc", "-m", LINUX_MEMORY]


def say(kind, value):
    print(json.dumps({kind: value}), flush=True)


def numbers(text):
    """A list of numbers on the command line."""
    found = [int(part) for part in text.split(",")]
    if len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text}: a number is named twice")
    return found


def tcp_sizes(text):
    """TCP's buffers, in KiB."""
    found = numbers(text)
    if not all(2 <= number <= 256 for number in found):
        raise argparse.ArgumentTypeError(f"{text}: expected 2 to 256 KiB")
    return found


def posted_counts(text):
    """Bounds of the posted receive buffers."""
    found = numbers(text)
    if not all(1 <= number <= 255 for number in found):
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to 255 buffers")
    return found


def names(known):
    """A list of names on the command line."""
    def parse(text):
        found = text.split(",")
        if any(name not in known for name in found) or len(set(found)) != len(found):
            raise argparse.ArgumentTypeError(f"{text}: expected {' or '.join(known)}, each once")
        return found
    return parse


def count(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return number


class Programs:
    """Both guests, built once."""

    def __init__(self, out, guests, backends):
        self.backends = backends
        needed = [("qemu-system-i386", "qemu-system-x86"), ("gcc", "gcc"), ("setpriv", "util-linux"), ("ip", "iproute2")]
        for program, package in needed + ([("dpdk-testpmd", "dpdk-dev")] if "vhost-user" in backends else []):
            if shutil.which(program) is None:
                raise linux_build.Missing(f"{program} is not installed", f"`make setup`, or `apt-get install {package}`")
        self.freertos = rtos_build.guest("i386", out) if "freertos" in guests else None
        self.linux, self.initramfs, self.package = linux_build.guest(out) if "linux" in guests else (None, None, None)

    def describe(self):
        version = subprocess.run(["qemu-system-i386", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
        systems = {"freertos": "FreeRTOS 11.2.0 and lwIP 2.2.1"} if self.freertos else {}
        return {"qemu": version, "accelerator": "tcg", "device": peer.TRANSPORTS[TRANSPORT][-1], "backends": self.backends,
                "guests": systems | ({"linux": self.package} if self.package else {}), "linux_command_line": LINUX_LINE}

    @contextlib.contextmanager
    def start(self, backend, guest, tcp_octets, posted):
        """A guest, behind a switch of its own if that is its backend."""
        with contextlib.ExitStack() as stack:
            vhost = stack.enter_context(testpmd.Switch()).path if backend == "vhost-user" else None
            if guest == "linux":
                machine, program, settings = "linux-i386", self.linux, f"{LINUX_LINE} tcp_octets={tcp_octets}"
                more = ["-initrd", str(self.initramfs)]
            else:
                machine, program, more = "i386", self.freertos, []
                settings = f"check=0,tcp_octets={tcp_octets},rx_min={posted},rx_max={posted},held_max={HELD_MAX},tx_max={TX_MAX}"
            yield stack.enter_context(rtos_peer.Guest(machine, TRANSPORT, program, settings, user=True, more=more, vhost=vhost))


def receive(guest, octets):
    """The guest receives: nanoseconds from its answer to the first message until it has read everything and closed, and what it says."""
    data = bytes(octets)
    with guest.connect("sink") as connection:
        connection.sendall(bytes(rtos_peer.MESSAGE))
        if connection.recv(1) != b"+":
            raise RuntimeError("the guest's sink did not answer")
        begin = time.perf_counter_ns()
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        rest = connection.recv(1)
        took = time.perf_counter_ns() - begin
    said = guest.said("sink")
    if rest or said["octets"] != octets + rtos_peer.MESSAGE:
        raise RuntimeError(f"the guest got {said['octets']} of {octets + rtos_peer.MESSAGE} octets, and sent {len(rest)}")
    return took, said


def send(guest, octets):
    """The guest sends: nanoseconds until the last octet is here, and what it says."""
    had = 0
    with guest.connect("source") as connection:
        begin = time.perf_counter_ns()
        connection.sendall(struct.pack("<Q", octets))
        while part := connection.recv(1 << 18):
            had += len(part)
            end = time.perf_counter_ns()
    if had != octets:
        raise RuntimeError(f"{had} of {octets} octets came from the guest")
    return end - begin, guest.said("source")


STREAMS = {"receive": receive, "send": send}


def memory(guest, posted, said):
    """Octets of buffers, of which only this driver says something: posted at most, and all (posted, held by lwIP, transmit)."""
    if guest == "linux":
        return {}
    return {"posted_peak_octets": said["rx_posted_peak_octets"], "buffer_octets": (posted + HELD_MAX + 1 + TX_MAX) * BUFFER_OCTETS,
            "rx_starved": said["rx_starved"], "held_peak": said["held_peak"]}


class Experiments:
    def __init__(self, programs, arguments):
        self.programs, self.arguments = programs, arguments

    def run(self):
        for backend in self.arguments.backend:
            self.with_waiting_backend() if backend == "user" else self.with_dropping_backend()

    def guests(self):
        """The guests in turn: the one that begins changes with the round."""
        return self.arguments.guest if self.arguments.round % 2 else self.arguments.guest[::-1]

    def with_waiting_backend(self):
        largest = max(self.arguments.tcp) * KIB
        for tcp in self.arguments.tcp:
            for guest in self.guests():
                self.one_guest("user", guest, tcp * KIB, self.arguments.usual_posted, has_trips=tcp * KIB == largest)
        for posted in self.arguments.posted if "freertos" in self.arguments.guest else ():
            if posted != self.arguments.usual_posted:
                self.one_guest("user", "freertos", largest, posted)

    def with_dropping_backend(self):
        """Round trips with few posted buffers. Streams with many: what finds no buffer is lost, and TCP waits for it."""
        largest = max(self.arguments.tcp) * KIB
        for guest in self.guests():
            self.one_guest("vhost-user", guest, largest, self.arguments.usual_posted, has_trips=True, has_streams=guest == "linux")
        for posted in self.arguments.dropping_posted if "freertos" in self.arguments.guest else ():
            self.one_guest("vhost-user", "freertos", largest, posted)

    def one_guest(self, backend, guest, tcp_octets, posted, has_trips=False, has_streams=True):
        path = guest if backend == "user" else f"{guest}-{backend}"
        of_posted = f", {posted} posted" if guest == "freertos" else ""
        say("step", f"round {self.arguments.round}, {path}, TCP {tcp_octets // KIB} KiB{of_posted}")
        common = {"path": path, "round": self.arguments.round, "tcp_octets": tcp_octets, "posted_max": posted if guest == "freertos" else None}
        with self.programs.start(backend, guest, tcp_octets, posted) as machine:
            for payload in (1, rtos_peer.MESSAGE) if has_trips else ():
                self.trips(machine, guest, posted, common, payload)
            for name, stream in STREAMS.items() if has_streams else ():
                stream(machine, min(WARM_UP["octets"], self.arguments.octets))
                took, said = stream(machine, self.arguments.octets)
                say("run", common | {"load": name, "payload_octets": rtos_peer.MESSAGE, "octets": self.arguments.octets,
                                     "nanoseconds": took, "messages": self.arguments.octets // rtos_peer.MESSAGE,
                                     "interrupts": said["interrupts_here"]} | memory(guest, posted, said))

    def trips(self, machine, guest, posted, common, payload):
        machine.ping_pong(min(WARM_UP["trips"], self.arguments.trips), payload)
        machine.said("echo")
        trips = [round(seconds * 1e9) for seconds in machine.ping_pong(self.arguments.trips, payload)]
        said = machine.said("echo")
        say("run", common | {"load": "ping-pong", "payload_octets": payload, "trips_ns": trips, "messages": len(trips),
                             "interrupts": said["interrupts_here"]} | memory(guest, posted, said))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/bench/rtos"), help="for the guests' programs")
    parser.add_argument("--round", type=count, default=1, metavar="N", help="the round's number; odd ones begin with the first guest")
    parser.add_argument("--trips", type=count, default=10_000, help="round trips of each size")
    parser.add_argument("--octets", type=count, default=32 << 20, help="octets of a TCP stream")
    parser.add_argument("--tcp", type=tcp_sizes, default=[16, 32, 64, 128], metavar="KIB,...", help="TCP's buffers")
    parser.add_argument("--posted", type=posted_counts, default=[1, 2, 4, 8, 16, 32, 64, 255], metavar="N,...",
                        help="posted receive buffers, with the largest of TCP's buffers")
    parser.add_argument("--usual-posted", type=count, default=8, metavar="N", help="posted receive buffers of all other runs")
    parser.add_argument("--dropping-posted", type=posted_counts, default=[64, 128, 255], metavar="N,...",
                        help="posted receive buffers of the streams behind vhost-user")
    parser.add_argument("--guest", type=names(GUESTS), default=list(GUESTS), metavar="NAME,...", help="freertos, linux")
    parser.add_argument("--backend", type=names(BACKENDS), default=list(BACKENDS), metavar="NAME,...", help="user, vhost-user")
    parser.add_argument("--quick", action="store_true", help="short runs in three configurations, to see that everything works")
    arguments = parser.parse_args()
    if not 1 <= arguments.usual_posted <= 255:
        parser.error("--usual-posted: expected 1 to 255 buffers")
    if arguments.quick:
        arguments.trips, arguments.octets = 200, 2 << 20
        arguments.tcp, arguments.posted, arguments.dropping_posted = [64], [8, 255], [255]
    return arguments


def main():
    arguments = parse()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Both guests, and this side, before other programs of the machine. Without the right they are ordinary programs.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        say("step", "building the guests")
        programs = Programs(out, arguments.guest, arguments.backend)
        if "vhost-user" in arguments.backend:
            testpmd.enter_namespace()
        say("ran_on", programs.describe() | {"nice": os.getpriority(os.PRIO_PROCESS, 0)})
        Experiments(programs, arguments).run()
    except linux_build.Missing as missing:
        say("missing", {"what": missing.what, "remedy": missing.remedy})
        return 3
    except (RuntimeError, OSError, AssertionError) as error:
        print(f"experiments: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
