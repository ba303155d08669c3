#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the real tc and the real sch_taprio about each command of schedule/tests/taprio/commands.toml.

In: that file; a Debian 13 tree with iproute2 and its kernel package (made once, kept in --cache). Out: the same
file with what was answered: exit status, first message, and the qdisc as `tc -j qdisc show` prints it. The judge is
a guest of QEMU without KVM with a virtio-net device of 8 queues at 1 Gbit/s, named eth0, taprio taken off it between the
commands. Needs root, mmdebstrap, qemu-system-x86_64, busybox-static.

Usage: sudo scripts/taprio-judge.py [--cache DIR]     (about five minutes, the first time one more)
"""

import argparse
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

COMMANDS = Path(__file__).resolve().parent.parent / "schedule/tests/taprio/commands.toml"
MODULES = ["failover", "net_failover", "virtio_net", "sch_mqprio_lib", "sch_taprio"]
QUEUES = 8
SPEED = 1000
SECONDS_MAX = 900

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin; rm /bin/tc
export PATH=/usr/sbin:/usr/bin:/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in %s; do insmod /m/$m.ko || echo "insmod $m failed"; done
ip link set eth0 up
echo "@@device queues=$(ls -d /sys/class/net/eth0/queues/tx-* | wc -l) speed=$(cat /sys/class/net/eth0/speed)"
echo "@@kernel $(uname -r)"
echo "@@tc $(/usr/sbin/tc -V 2>/dev/null)"
for c in /c/*; do
    /usr/sbin/tc qdisc del dev eth0 root 2>/dev/null
    timeout 20 dash "$c" >/out 2>/err; rc=$?
    echo "@@case $(basename $c) $rc"
    sed 's/^/@@err /' /err
    [ $rc = 0 ] && echo "@@shown $(/usr/sbin/tc -j qdisc show dev eth0 root)"
done
echo "@@end"
poweroff -f
"""

# Refusals by the device or by its state, other than by the command's text. Where the device speaks first and the text
# is wrong all the same, the command has `text_because`.
DEVICE = [
    "Device does not have a PTP clock",
    "Device does not support taprio offload",
    "Device failed to setup taprio offload",
    "Device does not support preemption",
    "is greater than number of HW queues",
    "exceed the",
    "Invalid interval for schedule entry",
    "'cycle_time' is too small",
    "TC max SDU exceeds device max MTU",
    "Cannot find device",
    "'mqprio' configuration is necessary",
    "Specified qdisc not found",
    "Qdisc not found",
]


def run(*argv, **options):
    return subprocess.run(argv, check=True, **options)


def make_tree(cache):
    """The Debian 13 tree: tc with its libraries, and the kernel package unpacked beside it."""
    tree, kernel = cache / "tree", cache / "kernel"
    if not (tree / "usr/sbin/tc").exists():
        shutil.rmtree(tree, ignore_errors=True)
        run("mmdebstrap", "--variant=minbase", "--mode=root", "--include=iproute2", "trixie", str(tree))
    if not list(kernel.glob("boot/vmlinuz-*")):
        depends = "apt-get update -qq && cd /tmp && apt-get download " \
            "$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -1)"
        run("chroot", str(tree), "sh", "-c", depends)
        package = next((tree / "tmp").glob("linux-image-*.deb"))
        run("dpkg-deb", "-x", str(package), str(kernel))
        package.unlink()
    return tree, kernel


def library_paths(tree, program):
    listing = run("chroot", str(tree), "ldd", program, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", listing)


def make_initrd(folder, tree, kernel, commands):
    for name in ["bin", "usr/sbin", "proc", "sys", "dev", "m", "c"]:
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox"), folder / "bin/busybox")
    # dash: busybox's shell would run a tc of its own.
    for path in ["/usr/bin/dash", "/usr/sbin/tc", *library_paths(tree, "/usr/sbin/tc")]:
        (folder / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / path[1:], folder / path[1:])
    for name in MODULES:
        module = next((kernel / "usr/lib/modules").rglob(f"{name}.ko.xz"))
        (folder / f"m/{name}.ko").write_bytes(lzma.decompress(module.read_bytes()))
    for index, command in enumerate(commands):
        (folder / f"c/{index:04}").write_text(command["text"] + "\n")
    (folder / "init").write_text(INIT % " ".join(MODULES))
    (folder / "init").chmod(0o755)
    archive = folder.parent / "initrd"
    pack = f"find . | busybox cpio -o -H newc | gzip -1 > {archive}"
    run("sh", "-c", pack, cwd=folder, stderr=subprocess.DEVNULL)
    return archive


def boot(kernel, initrd, console):
    image = next(kernel.glob("boot/vmlinuz-*"))
    # In a network namespace of its own: the tap device goes with it.
    argv = [
        "unshare", "-n", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-M", "q35",
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(QUEUES), "-m", "512",
        "-kernel", str(image), "-initrd", str(initrd),
        "-append", "console=ttyS0 quiet mitigations=off tsc=reliable net.ifnames=0 panic=-1",
        "-serial", f"file:{console}",
        "-netdev", f"tap,id=n0,ifname=judge,script=no,downscript=no,queues={QUEUES}",
        "-device", f"virtio-net-pci,netdev=n0,mq=on,vectors={2 * QUEUES + 2},speed={SPEED},duplex=full",
    ]
    run(*argv, timeout=SECONDS_MAX)


def shortened(shown):
    """The qdisc without what differs from run to run, and without lists that Linux fills in itself."""
    options = json.loads(shown)[0]["options"]
    kept = {name: value for name, value in options.items() if name not in ("max-sdu", "fp")}
    return json.dumps(kept, separators=(",", ":"))


def answers(console):
    """(facts of the judge, {number of the command: (exit status, messages, qdisc shown)})"""
    facts, cases, number = {}, {}, None
    for line in console.read_text(errors="replace").replace("\r", "").splitlines():
        word, _, rest = line.partition(" ")
        if word == "@@case":
            number, status = map(int, rest.split())
            cases[number] = {"exit": status, "messages": [], "shown": ""}
        elif word == "@@err" and rest:
            cases[number]["messages"].append(rest)
        elif word == "@@shown":
            cases[number]["shown"] = shortened(rest)
        elif word in ("@@device", "@@kernel", "@@tc"):
            facts[word[2:]] = rest.split(", libbpf")[0]
    return facts, cases


def verdict(command, case):
    if case["exit"] == 0:
        return "accepted"
    if "text_because" in command:
        return "text"
    text = "\n".join(case["messages"])
    return "device" if any(said in text for said in DEVICE) else "text"


def quoted(text):
    return f"'''\n{text}'''" if any(sign in text for sign in "\n'\"\\") else json.dumps(text)


def write(head, facts, commands, cases):
    lines = [*head, "", "[judge]"]
    lines += [f"{name} = {json.dumps(facts[name])}" for name in sorted(facts)]
    for index, command in enumerate(commands):
        case = cases[index]
        lines += ["", "[[command]]", f"source = {json.dumps(command['source'], ensure_ascii=False)}"]
        if "text_because" in command:
            lines.append(f"text_because = {json.dumps(command['text_because'])}")
        lines += [f"text = {quoted(command['text'])}", f"verdict = \"{verdict(command, case)}\"", f"exit = {case['exit']}"]
        said = [message for message in case["messages"] if not message.startswith("Warning: ")]
        if said:
            lines.append(f"message = {quoted(said[0])}")
        if case["shown"]:
            lines.append(f"shown = {quoted(case['shown'])}")
    COMMANDS.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/ktsn/taprio-judge").expanduser())
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("taprio-judge: needs root: a tree and a tap device are made")
    text = COMMANDS.read_text()
    commands = tomllib.loads(text)["command"]
    head = [line for line in text.splitlines() if line.startswith("#")]
    options.cache.mkdir(parents=True, exist_ok=True)
    tree, kernel = make_tree(options.cache)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "root").mkdir()
        initrd = make_initrd(folder / "root", tree, kernel, commands)
        console = folder / "console"
        boot(kernel, initrd, console)
        shutil.copy(console, options.cache / "console")
        facts, cases = answers(console)
    missing = [index for index in range(len(commands)) if index not in cases]
    if missing or set(facts) != {"device", "kernel", "tc"}:
        sys.exit(f"taprio-judge: {len(missing)} commands without an answer: see {options.cache}/console")
    if facts["device"] != f"queues={QUEUES} speed={SPEED}":
        sys.exit(f"taprio-judge: the guest's device is {facts['device']}")
    write(head, facts, commands, cases)
    kinds = [verdict(command, cases[index]) for index, command in enumerate(commands)]
    count = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("accepted", "text", "device"))
    print(f"taprio-judge: {len(commands)} commands: {count}; {facts['tc']}, kernel {facts['kernel']}")


if __name__ == "__main__":
    main()
