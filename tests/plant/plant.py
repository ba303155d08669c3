#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plant: two hosts with real drivers and current kernels, on a switch.

In: the packages of `make package`, root, a network or the tree of a run before. Out: a line for each scene, out/plant/closing.txt, exit
status 1 if one failed. What the machine lacks is a skip with its reason.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests/k8s", "tests/package", "tests/plant", "tests/plant/scenes")]
from kit.checks import Checks, Skip, only  # noqa: E402
from kit.space import until  # noqa: E402
import host as hosts  # noqa: E402
import tree as trees  # noqa: E402

OUT = ROOT / "out/plant"
# (card, kernel) of both hosts. CI runs the first ones.
PAIRS = (("igb", "7-rt"), ("virtio", "6.12"), ("e1000e", "6.12"), ("igb", "6.12"), ("e1000e", "7"), ("virtio", "7-rt"), ("virtio", "6.1"), ("igb", "6.1"))
QUICK = 2
EXAMPLES = """examples:
  plant.py                                   the pairs of CI
  plant.py --all                             each card, with each kernel
  plant.py --pair igb,7-rt --only reload     one scene
  plant.py --pair igb,7-rt --stay            a shell beside two hosts: a 'ip -br link'; b 'ktsn status'
"""
# A command that runs a script in a host, for people.
RUN = r"""#!/bin/sh
cd SHARE
next=1
while [ -e $next.sh ]; do next=$((next + 1)); done
printf '%s\n' "$*" >written
mv written $next.sh
until [ -e $next.status ]; do sleep 0.1; done
cat $next.out
exit "$(cat $next.status)"
"""


class Plant:
    """Two hosts that run, `a` and `b`, with KTSN installed and an address each."""

    def __init__(self, place, tree, card, kernel):
        self.place, self.card, self.kernel = place, card, kernel
        self.a, self.b = (hosts.Host(tree, place, name, number, card, kernel) for number, name in ((1, "a"), (2, "b")))

    def start(self):
        """Boots both, installs the package, waits until they reach each other."""
        packages = {f"{name}.deb": only(ROOT / "out/package", f"{name}_*.deb") for name in ("ktsn", "ktsn-bench")}
        hosts.make_switch()
        for one in (self.a, self.b):
            one.start(packages)
        for one in (self.a, self.b):
            one.wait_until_up()
        setups = [one.begin(f"set -e; dpkg -i --force-unsafe-io /share/ktsn.deb; ip addr add {one.address}/24 dev eth0; ip link set eth0 up")
                  for one in (self.a, self.b)]
        for setup in setups:
            setup.wait()
        for one, other in ((self.a, self.b), (self.b, self.a)):
            one.run(f"until ping -c 1 -W 1 {other.address} >/dev/null; do sleep 0.2; done", 60)
        return self


def scenes(only):
    """(name, function) of all scenes, file by file."""
    found = []
    for path in sorted((ROOT / "tests/plant/scenes").glob("*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [(f"{path.stem} {one.__name__}: {one.__doc__.splitlines()[0]}", one) for one in module.SCENES]
    return [(name, one) for name, one in found if only in name]


def one_pair(card, kernel, arguments):
    """One boot of two hosts, and all scenes in it. This process and its children have namespaces of their own, and end together."""
    place = OUT / "run"
    place.mkdir(exist_ok=True)
    tree = arguments.tree
    hosts.command("mount", "-t", "tmpfs", "plant", place)
    hosts.command("ip", "link", "set", "lo", "up")
    (place / "tree").mkdir()
    for words in (("--bind", tree, place / "tree"), ("--rbind", "/dev", tree / "dev"), ("-t", "proc", "proc", tree / "proc"), ("--rbind", place, tree / "mnt")):
        hosts.command("mount", *words)
    checks, title = Checks(), f"{card} {kernel}"
    plant = checks.step(f"{title}: both hosts run KTSN", lambda: Plant(place, tree, card, kernel).start())
    if plant and arguments.stay:
        stay(plant)
    elif plant:
        for name, one in scenes(arguments.only):
            if hasattr(one, "whole_only") and not (arguments.all or arguments.only):
                print(f"       {title}: {name}: only with --all or --only", flush=True)
                continue
            if card not in getattr(one, "cards", hosts.CARDS):
                continue
            checks.step(f"{title}: {name}", one, plant)
    for one in ("a", "b"):
        for name in ("console", "qemu.log"):
            if (place / one / name).exists():
                shutil.copyfile(place / one / name, OUT / f"{card}-{kernel}-{one}-{name}")
    (OUT / f"{card}-{kernel}.json").write_text(json.dumps(checks.done))


def stay(plant):
    """A shell of this machine in the plant's namespaces; `a` and `b` run a script in a host."""
    commands = plant.place / "commands"
    commands.mkdir()
    for one in (plant.a, plant.b):
        (commands / one.name).write_text(RUN.replace("SHARE", str(one.share)))
        (commands / one.name).chmod(0o755)
    print(f"plant: a 'SCRIPT' and b 'SCRIPT' run in a host; the switch is in this network namespace; files: {plant.place}; `exit` ends all", flush=True)
    subprocess.run([os.environ.get("SHELL", "/bin/bash")], env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}, check=False)


def isolated(pair, words):
    """Runs a pair in namespaces that end with it: a killed run has no QEMU, mount, device or file more. Its checks."""
    results = OUT / f"{'-'.join(pair)}.json"
    results.unlink(missing_ok=True)
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
            sys.executable, __file__, "--inside", "--pair", ",".join(pair), *words]
    status = subprocess.run(argv, check=False).returncode
    if results.exists():
        return json.loads(results.read_text())
    checks = Checks()
    checks.note(" ".join(pair), "failed", f"ended with status {status} before its results were written")
    return checks.done


def pair_of(text):
    card, _, kernel = text.partition(",")
    if card not in hosts.CARDS or kernel not in trees.KERNELS:
        raise argparse.ArgumentTypeError(f"{text}: expected CARD,KERNEL with a card of {', '.join(hosts.CARDS)} and a kernel of {', '.join(trees.KERNELS)}")
    return card, kernel


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="each card with each kernel, not only the pairs of CI; scenes of several minutes, too")
    parser.add_argument("--pair", type=pair_of, metavar="CARD,KERNEL", help=f"this pair alone: {', '.join(hosts.CARDS)}; {', '.join(trees.KERNELS)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="scenes with this in their name")
    parser.add_argument("--stay", action="store_true", help="no scenes, a shell beside the hosts (with --pair)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stay and not arguments.pair:
        parser.error("--stay: expected --pair CARD,KERNEL, too")
    if arguments.only and not scenes(arguments.only):
        parser.error(f"--only {arguments.only}: no scene has this in its name; there are: {'; '.join(name for name, _ in scenes(''))}")
    return arguments


def usable():
    """The tree, or a skip that says what the machine lacks."""
    if os.geteuid() != 0:
        raise AssertionError("the plant needs root: namespaces, devices and mounts")
    if platform.machine() != "x86_64":
        raise Skip("plant_machine", f"the plant's cards and kernels are x86-64's, and this machine is {platform.machine()}")
    only(ROOT / "out/package", "ktsn_*.deb")
    return trees.made()


def leaves_nothing(tree):
    """A run that is killed has no QEMU, mount or file more."""
    def guests():
        return [path for path in pathlib.Path("/proc").glob("[0-9]*/root") if read_link(path) == str(tree)]
    run = subprocess.Popen([sys.executable, __file__, "--pair", "e1000e,6.12", "--stay"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        until(lambda: len(guests()) == 2, 60, "both guests run")
    finally:
        run.kill()
        run.wait()
    until(lambda: not guests(), 20, "QEMU has ended")
    assert not list((OUT / "run").iterdir()) and str(tree) not in pathlib.Path("/proc/mounts").read_text()


def read_link(path):
    """Where a link leads; nothing where it is gone."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def main():
    arguments = read_arguments()
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.inside:
        one_pair(*arguments.pair, arguments)
        return 0
    checks = Checks()
    tree = checks.step("Debian 13 with QEMU 11 and the kernels", usable)
    words = ["--tree", str(tree), "--only", arguments.only, *(["--stay"] if arguments.stay else []), *(["--all"] if arguments.all else [])]
    pairs = ([arguments.pair] if arguments.pair else PAIRS[: None if arguments.all else QUICK]) if tree else ()
    # Two pairs at a time: a scene mostly waits.
    with concurrent.futures.ThreadPoolExecutor(2) as together:
        for done in together.map(lambda pair: isolated(pair, words), pairs):
            checks.done += done
    if tree and not arguments.only and not arguments.stay:
        checks.step("a killed run leaves nothing", leaves_nothing, tree)
    (OUT / "closing.txt").write_text(checks.closing() + "\n")
    print(checks.closing())
    return 1 if checks.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
