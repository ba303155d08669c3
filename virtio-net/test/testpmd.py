#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""DPDK's testpmd (Debian: dpdk-dev) as a backend of vhost-user, and as a switch between a guest and this machine's network stack.

The switch has two ports: a socket of vhost-user, and a tap. It polls, holds no frame back, and drops what the guest has no buffer for:
unlike QEMU's own backends, which wait. It lives in a network namespace of its own, so that nothing of this machine's network is touched.

testpmd.py CHECK ARGUMENTS...   a check of a guest behind the switch, inside the namespace; run.py starts it by `in_namespace`.
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import peer  # noqa: E402

START_MAX = 30
IDENTIFIERS = ("uid_map", "gid_map")
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET


def is_installed():
    return shutil.which("dpdk-testpmd") is not None


class Testpmd:
    """A testpmd that sends the frames of one port to the other, or those of its only port back. Its forwarding thread has `cpu`."""

    count = 0

    def __init__(self, folder, devices, cpu, start=True):
        Testpmd.count += 1
        self.prefix = f"ktsn-testpmd-{os.getpid()}-{Testpmd.count}"
        self.log = folder / f"testpmd-{Testpmd.count}.log"
        # It ends with this program, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", "dpdk-testpmd", "--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--no-shconf",
                   "--file-prefix", self.prefix, "--lcores", f"0@0,1@{cpu}", *(part for device in devices for part in ("--vdev", device)),
                   "--", "-i", "--nb-cores=1", "--forward-mode=io", "--total-num-mbufs=8192", *(["--auto-start"] if start else [])]
        environment = {**os.environ, "RUNTIME_DIRECTORY": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)

    def say(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, text):
        until = time.monotonic() + START_MAX
        while text not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"testpmd: no {text!r}: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        shutil.rmtree(f"/var/run/dpdk/{self.prefix}", ignore_errors=True)


class Switch:
    """A testpmd between the socket `path`, where one guest attaches, and the tap, which has an address of this side."""

    def __init__(self, cpu=1):
        self.cpu = cpu if cpu < os.cpu_count() else 0

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ktsn-switch-")
        folder = pathlib.Path(self.folder.name)
        self.path = folder / "vhost"
        self.testpmd = Testpmd(folder, [f"net_vhost0,iface={self.path},queues=1", f"net_tap0,iface={peer.TAP}"], self.cpu)
        try:
            self.testpmd.wait_for("testpmd>")
            for command in (["address", "add", peer.TAP_ADDRESS, "dev", peer.TAP], ["link", "set", peer.TAP, "up"]):
                subprocess.run(["ip", *command], check=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.testpmd.__exit__()
        self.folder.cleanup()


def still():
    """The system itself sends nothing into a new interface: a frame more could find no buffer in the guest."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    disable = pathlib.Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
    if disable.exists():
        disable.write_text("1")


def enter_namespace():
    """This process gets a network namespace of its own. Without root it becomes the root of a user namespace, too."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    if libc.unshare(NEW_NETWORK) != 0:
        if libc.unshare(NEW_USER | NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace: unshare failed")
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        for name, number in zip(IDENTIFIERS, (user, group)):
            pathlib.Path(f"/proc/self/{name}").write_text(f"0 {number} 1")
    still()


def in_namespace(*arguments):
    """Runs a check of this file in user and network namespaces of its own; needs no root. Returns what the check found."""
    if not is_installed():
        raise RuntimeError("dpdk-testpmd is not installed: `make setup`, or `apt-get install dpdk-dev`")
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def echo(machine, transport, program, device, count):
    """Frames of all lengths through the switch. Returns how many came back, and the guest's figures."""
    with Switch() as switch, peer.Guest(machine, transport, program, device=device, vhost=switch.path) as guest:
        before = guest.figures()["interrupts"]
        back = [guest.echo(count, 8), guest.echo(count // 10, 8, 1514), guest.echo(count // 10, 1, 19)]
        figures = guest.figures()
        return figures | {"echoes": back, "interrupts": figures["interrupts"] - before, "is_content": guest.quit()}


def freertos(machine, transport, program, settings, count):
    """FreeRTOS and lwIP behind the switch: echoes, and TCP with this machine's network stack. Returns echoes and the streams' figures."""
    import rtos_peer
    with Switch() as switch, rtos_peer.Guest(machine, transport, program, settings, vhost=switch.path) as guest:
        back = [guest.echo(count, 8), guest.echo(count // 10, 8, 60, b"T")]
        for octets in (1, rtos_peer.MESSAGE):
            guest.ping_pong(count // 100, octets)
        size = 100 * count
        sink, (octets, source) = guest.fill(size), guest.drain(size)
        return {"echoes": back, "sink": sink, "source": source, "is_same": octets == rtos_peer.content(size), "is_content": guest.quit()}


def main():
    checks = {"echo": echo, "freertos": freertos}
    *arguments, count = sys.argv[2:]
    enter_namespace()
    print(json.dumps(checks[sys.argv[1]](*arguments, int(count))))


if __name__ == "__main__":
    main()
