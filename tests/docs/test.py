#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that the pages show.

In: every ```console fence of the tree's pages, docs/commands.toml, the programs in the directory PROGRAMS, root. Out: a line for each
command, out/test-docs/closing.txt, exit status 1 if one failed. A command passes if it ends with the expected status and prints the
lines that the page shows below it, numbers aside. Never: a command of a page that is passed over without an entry that says why.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/k8s"), str(ROOT / "tests/docs")]
from kit.checks import Checks  # noqa: E402
from pages import Page, matches  # noqa: E402

OUT = ROOT / "out/test-docs"
RULES = "docs/commands.toml"
KEYS = {"command", "before", "beside", "stop_after", "status", "at", "instead", "tested_by", "not_run", "shown"}
PAGE_KEYS = {"prepare", "files", "command"}
# A page's machines: this one with eth0 and eth1, and `peer` behind both. /run, /dev/shm, /etc and /usr/local/bin are the page's own.
MACHINES = r"""
mount --make-rprivate /
for place in /run /dev/shm /usr/local/bin; do mount -t tmpfs tmpfs $place; done
mkdir /run/etc && cp -a /etc/. /run/etc && mount --bind /run/etc /etc
mkdir /run/fs && mount --rbind /sys/fs /run/fs
mount -t sysfs sysfs /sys
for place in /run/fs/*; do
    if mountpoint -q $place; then mount --rbind $place /sys/fs/${place##*/}; fi
done
mkdir -p /run/netns
ip link set lo up
ip netns add peer
ip -n peer link set lo up
for number in 0 1; do
    ip link add eth$number type veth peer name eth$number netns peer
    ip link set eth$number up
    ip -n peer link set eth$number up
done
ip addr add 10.0.0.1/24 dev eth0
ip -n peer addr add 10.0.0.2/24 dev eth0

echo ready
exec sleep infinity
"""
SECONDS_MAX = 180


class Machine:
    """What one page's commands run in, in the directory `files`. Whatever they start ends with it."""

    def __init__(self, files, programs):
        self.files, self.programs = files, programs
        said = tempfile.TemporaryFile(mode="w+")
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-e", "-x", "-c", MACHINES],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True)
        if (first := self.keeper.stdout.readline()) != "ready\n":
            self.keeper.kill()
            raise OSError(f"the page's machines were not made; printed {first!r}, the last commands: {output(said)[-600:]}")
        # Held open until the end: else the next page's namespace may get the same number while this one's processes are looked for.
        self.mounts = os.open(f"/proc/{self.keeper.pid}/ns/mnt", os.O_RDONLY)
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Not a namespace of processes: some commands need the machine's own.
        while found := self.processes():
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.keeper.poll()
            time.sleep(0.02)
        self.keeper.wait()
        os.close(self.mounts)

    def processes(self):
        """All that run among the page's mounts. One that has ended has none."""
        found, own = [], os.fstat(self.mounts)
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.path.samestat(os.stat(entry / "ns/mnt"), own):
                    found.append(int(entry.name))
        return found

    def start(self, text, at=None):
        """The command as a shell reads it; its output goes to a file, since one that stays running fills a pipe."""
        said = tempfile.TemporaryFile(mode="w+")
        words = ["nsenter", "-t", str(self.keeper.pid), "--net", "--mount", f"--wdns={self.files}"]
        words += ["ip", "netns", "exec", at] if at else []
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/root"), "TERM": "dumb", "LANG": "C.UTF-8"}
        environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name.startswith(("CARGO", "RUSTUP"))}
        process = subprocess.Popen([*words, "bash", "-c", text], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
        return process, said

    def run(self, text):
        process, said = self.start(text)
        if process.wait(SECONDS_MAX) != 0:
            raise AssertionError(f"exit status {process.returncode}, printed {output(said)!r}: {text}")


def output(said):
    said.seek(0)
    return said.read()


def ended(process, said, rule, text):
    """Waits for the command's end and judges it."""
    try:
        process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"no end after {SECONDS_MAX} s: {output(said)[-1500:]}") from None
    expected = rule.get("status", [0])
    assert process.returncode in expected, f"exit status {process.returncode}, expected {expected}: {output(said)[-1500:]}"
    if text.shown:
        for line in text.shown[:rule.get("shown")]:
            assert matches(line, output(said)), f"the page shows a line that is not printed: {line}\nprinted: {output(said)[-3000:]}"


def stopped(process, said, rule, text):
    """Ends a command that stays, as Ctrl-C does."""
    assert process.poll() is None, f"it ended by itself, status {process.returncode}: {output(said)[-1500:]}"
    os.killpg(process.pid, signal.SIGINT)
    ended(process, said, rule, text)


def tried(machine, rule, command):
    """One command of a page."""
    if "before" in rule:
        machine.run(rule["before"])
    process, said = machine.start(rule.get("instead", command.text), rule.get("at"))
    if "beside" in rule:
        # The page's next commands are for it: it must not have ended before them.
        machine.running.append((process, said, rule, command))
        time.sleep(rule["beside"])
        assert process.poll() is None, f"it ended by itself, status {process.returncode}: {output(said)[-1500:]}"
    elif "stop_after" in rule:
        time.sleep(rule["stop_after"])
        stopped(process, said, rule, command)
    else:
        ended(process, said, rule, command)


def tested_by(path, command):
    assert (ROOT / path).is_file(), f"{RULES}: {command.first}: tested_by: no file {path}"


def of_page(page, rules, programs):
    """(name, outcome as Checks notes it) of each command of a page, and of what they need if that could not be made."""
    checks = Checks()
    try:
        run_page(page, rules, programs, checks)
    except Exception as error:  # pylint: disable=broad-except  # the other pages go on
        traceback.print_exc()
        checks.note(f"{page.path}: what its commands need", "failed", f"{type(error).__name__}: {error}")
    return checks.done


def run_page(page, rules, programs, checks):
    """Notes each command of a page."""
    by_text = {rule["command"]: rule for rule in rules.get("command", [])}
    with tempfile.TemporaryDirectory(prefix="page.", dir=OUT) as files:
        page.fill(pathlib.Path(files), rules.get("files", {}), ROOT, programs)
        with Machine(files, programs) as machine:
            if "prepare" in rules:
                machine.run(rules["prepare"])
            for command in page.commands:
                name, rule = f"{page.path}: {command.first}", by_text.get(command.first, {})
                if "tested_by" in rule:
                    checks.step(f"{name} (by {rule['tested_by']})", tested_by, rule["tested_by"], command)
                elif "not_run" not in rule:
                    checks.step(name, tried, machine, rule, command)
            for process, said, rule, command in reversed(machine.running):
                checks.step(f"{page.path}: {command.first}: its end", stopped if rule.get("stop_after") == "end" else ended, process, said, rule, command)


def faults_of(rules, pages):
    """What is wrong with the entries themselves."""
    by_path = {page.path: page for page in pages}
    for path, page in rules.items():
        if path not in by_path or not by_path[path].commands:
            yield f"page {path!r}: it shows no command"
            continue
        yield from (f"{path}: unknown key {key!r}, expected one of {sorted(PAGE_KEYS)}" for key in sorted(set(page) - PAGE_KEYS))
        texts = [command.first for command in by_path[path].commands]
        for rule in page.get("command", []):
            yield from (f"{path}: unknown key {key!r}, expected one of {sorted(KEYS)}" for key in sorted(set(rule) - KEYS))
            if rule.get("command") not in texts:
                yield f"{path}: the page shows no command {rule.get('command')!r}"


def main():
    parser = argparse.ArgumentParser(description="Runs the commands that the pages show.", epilog="Example: tests/docs/test.py target/release --only schedules")
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS", help="directory with ktsn, ktsnd and libktsn.so")
    parser.add_argument("--only", default="", metavar="TEXT", help="pages with this text in their path")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("root is needed: each page gets network and mount namespaces")
    # A shell's background processes ignore Ctrl-C, and theirs would: with a handler here, commands begin with the system's own action.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rules = tomllib.loads((ROOT / RULES).read_text())["page"]
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "--", "*.md"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    pages = [Page(name, (ROOT / name).read_text()) for name in names]
    checks = Checks()
    for fault in faults_of(rules, pages):
        checks.note(f"{RULES}: {fault}", "failed", fault)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    chosen = [page for page in pages if page.commands and options.only in page.path]
    with concurrent.futures.ThreadPoolExecutor(3) as at_once:
        for done in at_once.map(lambda page: of_page(page, rules.get(page.path, {}), options.programs.resolve()), chosen):
            checks.done.extend(done)
    left = [(page.path, rule["command"], rule["not_run"]) for page in chosen for rule in rules.get(page.path, {}).get("command", []) if "not_run" in rule]
    for path, command, reason in left:
        print(f"not run: {path}: {shlex.quote(command)}: {reason}")
    print(checks.closing())
    (OUT / "closing.txt").write_text(checks.closing() + "\n")
    sys.exit(1 if checks.count("failed") or not checks.done else 0)


if __name__ == "__main__":
    main()
