#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soak: KTSN under traffic while programs and ktsnd are killed, namespaces deleted, links cut, rings and the disk filled.

In: the built programs, minutes, a seed. Out: a line every few seconds, a table, out/soak/results.json; exit status 1 when anything
hung, leaked, or a frame is neither received nor counted. Everything that it starts ends with it, however it ends. Needs root.
"""

import argparse
import fcntl
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import sys
import time
import traceback

sys.dont_write_bytecode = True
from actions import Soak  # noqa: E402
from bed import Bed, Daemon, Hang, Tap  # noqa: E402

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRESS = 5.0
WARM_UP = 5.0
GROWTH_KIB = 16384  # as tests/tests/faults_kills.rs: an allocator's caches


def arguments():
    parser = argparse.ArgumentParser(
        description="kills, cuts, fills and deletes at random under traffic, and accounts for every frame and resource",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  make soak MINUTES=10\n  make soak MINUTES=60 SEED=7\n"
               "  tests/soak/soak.py --programs target/release --minutes 5 --seed 7\n"
               "  tests/soak/soak.py --programs target/release --old /opt/ktsn-0.1\n\n"
               "Exit status: 0 nothing found; 1 a hang, a leak or a frame without account; 2 wrong usage; 3 not possible here.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="directory of ktsn, ktsnd and libktsn.so")
    parser.add_argument("--old", type=pathlib.Path,
                        help="directory of the ktsnd that upgrades begin with and rollbacks return to, and of the libktsn.so of every other program "
                             "(default: a copy)")
    parser.add_argument("--minutes", type=float, default=10, help="of actions (default 10)")
    parser.add_argument("--seed", type=int, help="of the actions and their pauses (default: the time)")
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "out/soak", help="directory of results.json")
    parser.add_argument("--only", default="", metavar="A,B", help=f"only these actions of: {', '.join(Soak.WEIGHTS)}")
    parser.add_argument("--lose", type=int, default=0, metavar="N", help="forget each Nth frame at the receiver: the run must fail then")
    given = parser.parse_args()
    given.only = [name for name in given.only.split(",") if name]
    if unknown := set(given.only) - set(Soak.WEIGHTS):
        parser.error(f"no such action: {', '.join(sorted(unknown))}")
    if given.seed is None:
        given.seed = int(time.time())
    return given


def interrupted(*_):
    raise KeyboardInterrupt


def progress(soak, began, seconds):
    """One line; the frames without account so far."""
    sums = soak.ledger.settle()
    unnamed, _ = soak.ledger.balance(sums)
    print(f"{time.monotonic() - began:6.0f} of {seconds:.0f} s: {sum(soak.counts.values())} actions, {soak.kills} kills, "
          f"{soak.ledger.tap.frames} frames received, {sums['taken']} sent ones judged, {unnamed} unaccounted", flush=True)


def actions(soak, seconds):
    """Acts until the time is over."""
    began = said = time.monotonic()
    while time.monotonic() - began < seconds:
        soak.step()
        time.sleep(soak.random.random() * 0.8)
        if time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            progress(soak, began, seconds)


def leaks(before, after):
    """What there is more of, or other, than before."""
    found = []
    for what, was in before.items():
        now = after[what]
        if isinstance(was, dict):
            found += [f"{what}: {kind} {was.get(kind, 0)} → {count}" for kind, count in now.items() if count > was.get(kind, 0)]
        elif what.endswith("KiB"):
            found += [f"{what}: {was} → {now}"] if now > was + GROWTH_KIB else []
        elif now != was:
            found.append(f"{what}: {was} → {now}")
    return found


def soaked(given, bed, verdict):
    """The run; `verdict` is filled as it goes, so that a hang leaves what was known."""
    bed.open()
    copy = bed.directory / "ktsnd-old"
    shutil.copy2((given.old or given.programs) / "ktsnd", copy)
    daemon = Daemon(bed, [copy, given.programs.resolve() / "ktsnd"])
    daemon.start()
    tap = Tap(bed, given.lose)
    tap.start()
    soak = Soak(bed, daemon, tap, random.Random(given.seed), given.only)
    verdict["soak"] = soak
    soak.begin()
    time.sleep(WARM_UP)
    soak.settle()
    before = soak.resources()
    verdict["resources"] = {"before": before}
    actions(soak, given.minutes * 60)
    time.sleep(WARM_UP)
    soak.settle()
    verdict["resources"]["after"] = after = soak.resources()
    verdict["leaks"] = leaks(before, after)
    soak.finish()
    tap.stop = True
    tap.join()
    lost = tap.lost()
    sums = soak.ledger.settle(is_final=True)
    unnamed, beyond = soak.ledger.balance(sums)
    allowed = sums["in_call"] + len(soak.ledger.dead_lives)
    verdict["frames"] = dict(sums, received=tap.frames, dropped=soak.ledger.dropped(), unaccounted=unnamed, counted_beyond_missing=beyond,
                             allowed_beyond_missing=allowed, twice=tap.twice, early=tap.early, lost_by_tap=lost)
    verdict["bpf_objects_seen"] = len(daemon.objects)
    verdict["leaks"] += [f"bpf object: {one}" for one in daemon.objects_left()]
    found = verdict["findings"] = list(dict.fromkeys(soak.findings))
    if lost:
        found.append(f"the tap lost {lost} frames: this run cannot tell")
    if unnamed:
        found.append(f"{unnamed} frames are neither received nor counted")
    if beyond > allowed:
        found.append(f"{beyond} counts more than missing frames, {allowed} can be explained")
    if tap.twice or tap.early:
        found.append(f"{tap.twice} frames arrived twice, {tap.early} early")


def report(given, verdict, seconds):
    """results.json, the table, and the exit status."""
    soak = verdict.pop("soak", None)
    if soak:
        served = sorted(soak.served_ms) or [0]
        verdict |= {"actions": dict(sorted(soak.counts.items())), "kills": soak.kills, "ktsnd_starts": soak.daemon.starts,
                    "served_again_ms": {"p50": served[len(served) // 2], "max": served[-1]},
                    "unanswered_once": soak.daemon.unanswered, "ktsnd_resident_max_kib": soak.daemon.resident_max,
                    "findings": verdict.get("findings", soak.findings)}
    failed = bool(verdict["hangs"] or verdict["leaks"] or verdict.get("findings") or "frames" not in verdict)
    verdict["verdict"] = "failed" if failed else "passed"
    given.out.mkdir(parents=True, exist_ok=True)
    if soak:
        (given.out / "trace.json").write_text(json.dumps({"actions": soak.timeline, "programs": soak.ledger.trace}))
    (given.out / "results.json").write_text(json.dumps(verdict, indent=1) + "\n")
    for what in ("actions", "frames"):
        for key, value in verdict.get(what, {}).items():
            print(f"  {what:8} {key:24} {value}")
    for what in ("hangs", "leaks", "findings"):
        print(f"  {what}: {len(verdict.get(what, []))}")
        for line in verdict.get(what, []):
            print(f"    {line}")
    print(f"soak {verdict['verdict']}: {seconds:.0f} s, {verdict.get('kills', 0)} kills; repeat with: make soak MINUTES={given.minutes:g} SEED={given.seed}")
    return 1 if failed else 0


def main():
    given = arguments()
    if os.geteuid():
        print("soak: needs root (network namespaces)", file=sys.stderr)
        return 3
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupted)
    lock = REPOSITORY / "out/.measure.lock"
    lock.parent.mkdir(exist_ok=True)
    verdict = {"seed": given.seed, "minutes": given.minutes, "hangs": [], "leaks": [],
               "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load": os.getloadavg()}}
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        bed, began = Bed(given.programs, given.old and given.old.resolve()), time.monotonic()
        try:
            soaked(given, bed, verdict)
        except Hang as hang:
            verdict["hangs"].append(str(hang))
        except Exception as error:  # noqa: BLE001: whatever it was, the seed and what is known are reported
            traceback.print_exc()
            verdict["findings"] = [f"{type(error).__name__}: {error}"]
        except KeyboardInterrupt:
            print("soak: interrupted", file=sys.stderr)
            verdict["findings"] = ["interrupted"]
        finally:
            if soak := verdict.get("soak"):
                verdict["log"] = soak.daemon.log.read_text()[-4000:]
                for process in [soak.daemon.process, *(one.process for one in soak.ledger.living)]:
                    process.kill()
                    process.wait()
            bed.close()
    return report(given, verdict, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
