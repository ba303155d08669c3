#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The end-to-end test in a real Kubernetes cluster.

In: the built programs. Out: a line for each check, out/e2e/k8s.json and k8s.html, last the line 'N passed, N failed,
N skipped'; exit status 1 if any failed. Everything that it starts ends with it, however it ends. Needs root.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time

sys.dont_write_bytecode = True
from kit import build, checks, cluster as clusters, images, selftest  # noqa: E402
from kit.adversities import Adversities  # noqa: E402
from kit.experiment import Experiment  # noqa: E402
from kit.faults import Faults  # noqa: E402
from kit.kinds import Kinds  # noqa: E402
from kit.ktsn import Ktsn  # noqa: E402
from kit.lifecycle import Lifecycle  # noqa: E402
from kit.older import Older  # noqa: E402
from kit.schedules import Schedules  # noqa: E402

QUICK_SECONDS = 1.0

# In their order; those of one line run side by side, for they only wait, and none of them touches what another looks at. What takes its
# minute is begun early and looked at last: kubelet tells the plugins once a minute what a reboot left, the agent waits as long before it
# complains.
TURNS = (
    ("node_rebooted",), ("daemon_killed",), ("rolling_update",), ("agent_restarted",), ("kubelet_restarted",), ("deleted_without_daemon",), ("dual_stack",),
    ("unserved_started",),
    ("kinds_served", "without_resource", "addresses_spent", "wrong_definition", "policy_selects"), ("policy_comes_later",),
    ("disk_full", "stream_judged", "agent_confined", "capacity_exceeded"),
    ("many_at_once", "forwarding_denied"), ("schedule_applied",), ("schedule_refused",), ("schedule_for_joining",), ("controller_killed",), ("stream_refused",),
    ("prefixes_doubled",), ("range_taken",), ("unserved_told", "rebooted_forgotten"),
)
# Nothing may be left on the nodes by the lines of these.
CLEAN = ("kinds_served", "policy_comes_later", "disk_full", "many_at_once")
GROUPS = (Faults, Kinds, Schedules, Adversities)
NAMES = tuple(name for names in TURNS for name in names)
# Sizes beyond these are an accident: something went into an image that does not belong there.
SIZES_MAX = {"node": 60_000_000, "controller": 40_000_000, "workload": 40_000_000, "pause": 4_000_000} | dict.fromkeys(images.KINDS, 10_000_000)


def arguments():
    parser = argparse.ArgumentParser(
        description="KTSN in a real Kubernetes cluster on this machine: measures, then breaks what can break",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  make e2e-k8s\n  make e2e-k8s QUICK=1\n"
               "  tests/k8s/e2e.py --programs target/release --without-experiment --only daemon_killed,disk_full\n"
               "  tests/k8s/e2e.py --programs target/release --only '' --stay\n\ncases:\n" +
               textwrap.fill(", ".join(NAMES), 100, initial_indent="  ", subsequent_indent="  "))
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="directory of ktsn, ktsnd, tsn-cni, …")
    parser.add_argument("--out", type=pathlib.Path, default=build.REPOSITORY / "out/e2e", help="directory of results, report and logs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of traffic per path and payload")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved; the median counts")
    parser.add_argument("--only", type=chosen, default=NAMES, help="these cases (all)", metavar="A,B")
    parser.add_argument("--old", type=pathlib.Path, metavar="DIR", help="begin with an update from an older commit's `make package` output, and back")
    parser.add_argument("--quick", action="store_true", help="a short experiment that counts frames and judges no times: for a busy machine")
    parser.add_argument("--cached", action="store_true", help="a skip where Kubernetes would have to be built first")
    parser.add_argument("--without-experiment", action="store_true", help="the cases alone")
    parser.add_argument("--strict-bars", action="store_true", help="a ratio above its bar fails")
    parser.add_argument("--stay", action="store_true", help="then wait for Ctrl-C: the cluster is yours until then")
    return parser.parse_args()


def chosen(text):
    """The cases of --only, in their order."""
    asked = [name for name in text.split(",") if name]
    if unknown := sorted(set(asked) - set(NAMES)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: no such case; there are {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in asked)


def double_tested():
    """The double of Multus, held against its own tests."""
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOPROXY": build.PROXY}
    build.run(["go", "test", "-count=1", "./..."], build.CACHE / "log/multinet-test.log", cwd=build.HERE / "multinet", env=environment)


def sizes(made):
    for name, (_, octets) in made.items():
        print(f"       image {name}: {octets / 1e6:.1f} MB", flush=True)
        if octets > SIZES_MAX[name]:
            raise RuntimeError(f"image {name} has {octets} octets, at most {SIZES_MAX[name]} were expected")


def measured(run, experiment, args):
    """The experiment, and one check for each bar.

    Counts are hard. A ratio of times fails above twice its bar, since a busy machine moves it; whether the bar itself is met
    is printed beside it and once more at the end, and --strict-bars holds it. A quick one has no ratios.
    """
    if args.quick:
        document = experiment.measure(QUICK_SECONDS, 1, payloads=(64,), ways=("flannel", "tsn-cni"), judged=True)
        document["comparisons"] = [held for held in document["comparisons"] if not held.get("to")]
    else:
        document = experiment.measure(args.seconds, args.rounds)
    for held in document["comparisons"]:
        against = held.get("to")
        ratio, bar = held.get("ratio"), held["bar"]
        met = bool(held.get("holds"))
        near = against and not args.strict_bars and ratio is not None and ratio <= 2 * bar
        found = f"{'met' if met else 'MISSED'}: {ratio if ratio is None else round(ratio, 3)}, bar {bar}"
        name = f"bar: {held['metric']} {held['of']}" + (f" / {against}" if against else "")
        run.note(f"{name}, {held['payload_octets']} octets", "passed" if met or near else "failed", found)
    return document


def turn(run, groups, names, looks):
    """Cases side by side; where one `looks`, also what they left."""
    methods = [next(getattr(group, name) for group in groups if hasattr(group, name)) for name in names]
    nodes = groups[0].cluster.nodes
    before = [groups[0].leavings(node) for node in nodes] if looks else []
    if len(methods) == 1:  # a daemon that a case starts would end with the thread that started it
        run.step(told(methods[0]), methods[0])
    else:
        run.together([(told(method), method) for method in methods])
    for node, had in zip(nodes, before):
        run.step(f"nothing is left on {node.name} of {', '.join(names)}", groups[0].same, node, had, 60)


def told(method):
    """A case's name and what must hold."""
    return f"{method.__name__}: {method.__doc__.splitlines()[0]}"


def bars(document):
    """The line that tells how many bars were met and names the others; none where nothing was measured."""
    held = document.get("comparisons", [])
    missed = [f"{bar['metric']} {bar['of']}" + (f" / {bar['to']}" if bar.get("to") else "") + f" at {bar['payload_octets']} octets"
              for bar in held if not bar.get("holds")]
    if held:
        print(f"bars: {len(held) - len(missed)} met, {len(missed)} missed" + (": " + "; ".join(missed) if missed else ""), flush=True)


def whole(run, args):
    """All steps in their order; the experiment's document."""
    run.step("the test's own tools find their faults", selftest.run)
    path = run.step("cluster programs are here", build.everything, not args.cached)
    if path is None:
        return None
    _, made = run.together([("the double of Multus passes its tests", double_tested),
                            ("images are made offline", lambda: images.make(args.programs, args.out / "images"))])
    if made is None:
        return None
    run.step("images are small", sizes, made)
    document = None
    with clusters.Cluster(path, args.out / "logs") as cluster:
        begun = time.monotonic()
        cluster.up([archive for archive, _ in made.values()])
        run.note("two nodes are Ready, Flannel between them", "passed", seconds=time.monotonic() - begun)
        ktsn = Ktsn(cluster)
        experiment, lifecycle = Experiment(ktsn, args.programs, args.out), Lifecycle(ktsn, args.programs, not args.quick)
        run.step(told(lifecycle.refused_first), lifecycle.refused_first)
        if args.old:
            older = Older(lifecycle, experiment, args.old.resolve())
            for name in Older.STEPS:
                if run.count("failed") == 0:
                    run.step(told(getattr(older, name)), getattr(older, name))
        for name in ("install", "connectivity", "rt_check", "installed_again", "wrong_update"):
            if run.count("failed") == 0:
                run.step(told(getattr(lifecycle, name)), getattr(lifecycle, name))
        if run.count("failed") == 0:
            run.step("talker and listener get both networks", experiment.prepare)
        if run.count("failed") == 0:
            groups = [group(ktsn, args.programs, experiment.listener) for group in GROUPS]
            for group in groups:
                group.judges_times = not args.quick
            run.step("timed frames flow between nodes", groups[0].traffic)
            if not args.without_experiment:
                document = run.step("the paper's experiment in the cluster", measured, run, experiment, args)
            for names in TURNS:
                if asked := [name for name in names if name in args.only]:
                    turn(run, groups, asked, set(names) & set(CLEAN))
            for name in () if args.stay else ("tutorial", "uninstall_refused", "uninstall_forced", "uninstall"):
                run.step(told(getattr(lifecycle, name)), getattr(lifecycle, name))
        if args.stay:
            print("\n" + " ".join(cluster.kubectl_words()) + "\nCtrl-C ends the cluster", flush=True)
            try:
                time.sleep(86400)
            except KeyboardInterrupt:
                pass
    run.note("the cluster is gone without a trace", "passed")
    return document


def main():
    args = arguments()
    args.programs, args.out = args.programs.resolve(), args.out.resolve()
    if os.geteuid() != 0:
        print("e2e-k8s: needs root: namespaces, mounts, control groups", file=sys.stderr)
        return 3
    clusters.stop_on_signals()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    run, begun = checks.Checks(), time.monotonic()
    try:
        document = whole(run, args)
    except KeyboardInterrupt as stopped:
        print(f"e2e-k8s: stopped by {stopped}; everything that was set up is removed", file=sys.stderr)
        return 130
    except Exception as error:  # pylint: disable=broad-except  # the cluster itself: reported like every other check
        run.note("the cluster works", "failed", f"{type(error).__name__}: {error}")
        document = None
    print(f"e2e-k8s: {time.monotonic() - begun:.0f} s", flush=True)
    file = args.out / "k8s.json"
    document = document or {"schema": "ktsn.results/1", "experiment": "k8s", "command": ["make", "e2e-k8s"]}
    file.write_text(json.dumps(document | {"checks": run.done}, indent=1) + "\n")
    if document.get("series") and not args.quick:
        subprocess.run([str(args.programs / "ktsn"), "report", str(file), "-o", str(args.out / "k8s.html")], check=False)
    shutil.rmtree(args.out / "images", ignore_errors=True)
    bars(document)
    (args.out / "closing.txt").write_text(run.closing() + "\n")
    print(run.closing(), flush=True)
    return 1 if run.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
