# SPDX-License-Identifier: Apache-2.0
"""A machine of the cluster: namespaces of its own, and the programs in them.

In: a name, a directory. Out: a `Space` in which programs are started, and that ends with everything in it. It ends too when
this process does, however: each link of the chain asks the kernel to be killed with its parent.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

INIT = pathlib.Path(__file__).resolve().parent / "init.py"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent():
    """Between fork and exec: SIGKILL for this process when its parent ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def until(condition, seconds, what, pause=0.1):
    """Waits for `condition` and returns what it gave; an exception of `what` after that long."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what() if callable(what) else what}: not within {seconds} s")
        time.sleep(pause)
    return found


def children(pid):
    try:
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Failed(Exception):
    """A program that ended badly, with what it said."""


class Program:
    """A program in a space; `pid` is its number outside."""

    def __init__(self, space, name, argv, environment):
        self.name, self.log = name, space.directory / "log" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.outer = subprocess.Popen([*space.enter(), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                          env=environment, preexec_fn=die_with_parent)
        # nsenter forks, since a pid namespace is entered by children only.
        self.pid = until(lambda: (children(self.outer.pid) or [self.outer.poll()])[0], 5, f"start of {name}", 0.01)
        if self.outer.poll() is not None:
            raise Failed(f"{name} ended at once:\n{self.tail()}")

    def tail(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def alive(self):
        return self.outer.poll() is None

    def stop(self, with_signal=signal.SIGTERM, seconds=10):
        """Ends it; kills it when it does not listen."""
        for what in (with_signal, signal.SIGKILL):
            if self.alive():
                try:
                    os.kill(self.pid, what)
                    self.outer.wait(seconds)
                except ProcessLookupError:
                    self.outer.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue
        return self.outer.poll()


class Space:
    """One machine: process 1 in namespaces of its own."""

    def __init__(self, kind, name, directory, cgroup, path):
        self.kind, self.name, self.directory, self.cgroup = kind, name, directory, cgroup
        self.environment = {"PATH": f"{path}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(directory), "LANG": "C.UTF-8"}
        self.programs = {}
        self.switch_on()

    def switch_on(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        argv = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--propagation", "private", "--fork",
                "--kill-child=KILL", sys.executable, "-I", str(INIT), self.kind, str(self.directory), self.cgroup]
        # To a file: a pipe's reader might not be there when process 1 has something to say.
        with (self.directory / "init.log").open("wb") as out:
            self.outer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment,
                                          preexec_fn=die_with_parent)

        def ready():
            said = (self.directory / "init.log").read_text(errors="replace")
            if self.outer.poll() is not None:
                raise Failed(f"{self.name} did not start: {said}")
            return said.startswith("ready")

        until(ready, 10, f"{self.name} starts", 0.02)
        self.pid = children(self.outer.pid)[0]

    def enter(self, network_only=False):
        """The words before a command that runs it here."""
        if network_only:
            return ["nsenter", f"--target={self.pid}", "--net", "--"]
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--"]

    def run(self, *argv, check=True, network_only=False, seconds=60, **options):
        """A command's output."""
        done = subprocess.run([*self.enter(network_only), *map(str, argv)], capture_output=True, text=True, check=False,
                              env=self.environment, timeout=seconds, **options)
        if check and done.returncode != 0:
            raise Failed(f"{self.name}: {' '.join(map(str, argv))}: exit status {done.returncode}: {done.stderr.strip()}")
        return done if not check else done.stdout

    def ip(self, line):
        return self.run("ip", *line.split())

    def start(self, name, *argv, **environment):
        """Starts a daemon."""
        self.programs[name] = Program(self, name, argv, self.environment | environment)
        return self.programs[name]

    def switch_off(self):
        """As a power cut: everything of this machine that is not on its disk is gone."""
        for pid in (getattr(self, "pid", None), self.outer.pid):
            try:
                if pid:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.outer.wait(30)
        for program in self.programs.values():
            program.outer.wait(30)
        self.programs = {}
