# SPDX-License-Identifier: Apache-2.0
"""Clocks that are disciplined and fail: what ktsnd says of them, and what becomes of frames with a transmit time on CLOCK_TAI.

QEMU's cards have a clock, but no time stamps that ptp4l can use. igb stamps none but messages of the type that its register names (the
driver names Sync), and the driver does not find that stamp; e1000e stamps nothing it sends. So ptp4l takes the kernel's stamps here.
"""

import contextlib
import pathlib
import subprocess
import time

from bed import serving
from host import whole_only
from kit.space import until

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "programs/clock.c"
# ptp4l's servo cannot do better here: the hosts are interpreted.
PTP4L = "[global]\ntime_stamping software\nnetwork_transport L2\nlogAnnounceInterval 0\nlogSyncInterval -2\nstep_threshold 0.05\nfirst_step_threshold 0.05\n"


def drops(bed):
    """How many frames were dropped because the clock was not good."""
    return bed.counters()["dropped"].get("unsynchronised", 0)


def clock(bed):
    """What ktsnd says of the clock."""
    return bed.status()["health"]["clock"]


def until_clock(bed, is_good, why):
    """Waits until ktsnd says so of the clock."""
    until(lambda: clock(bed)["is_good"] is is_good, 120, lambda: f"{why}: {clock(bed)}\n{bed.log()}\n{bed.a.tried('tail -n 20 /tmp/ptp4l.log')}")


@contextlib.contextmanager
def ptp4l(host, *options):
    """ptp4l in a host."""
    host.run(f"cat >/tmp/ptp4l.conf <<'END'\n{PTP4L}END\nsetsid ptp4l -i eth0 -m -f /tmp/ptp4l.conf {' '.join(options)} >/tmp/ptp4l.log 2>&1 </dev/null &\necho $! >/tmp/ptp4l.pid")
    try:
        yield
    finally:
        host.run("kill $(cat /tmp/ptp4l.pid) || true; while kill -0 $(cat /tmp/ptp4l.pid) 2>/dev/null; do sleep 0.1; done")


def set_clock(host, words):
    """Sets the clock of a host."""
    if not (host.share / "clock").exists():
        subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Werror", "-o", host.share / "clock", PROGRAM], check=True)
    return host.run(f"/share/clock {words}")


@contextlib.contextmanager
def own_time(host):
    """Afterwards the host has its time again."""
    try:
        yield
    finally:
        set_clock(host, "bad")
        set_clock(host, "tai 0")
        host.run(f"date -s @{time.time():.3f}")


@whole_only
def grandmaster(plant):
    """ptp4l follows, loses its grandmaster, finds it again; the clock is set meanwhile"""
    with serving(plant, more='unsynchronised = "drop"\n[daemon]\nclock_source = "ptp4l"\n') as bed:
        until_clock(bed, False, "ptp4l does not run")
        with ptp4l(plant.a, "-s"), bed.traffic(clock="tai", arrives=False):
            until(lambda: drops(bed) > 0, 60, "frames are dropped before the clock is good")
            with ptp4l(plant.b, "--priority1 100"):
                until_clock(bed, True, "ptp4l follows a grandmaster")
                bed.arrives()
                steps = clock(bed)["steps"]
                set_clock(plant.a, "step 2")
                until(lambda: clock(bed)["steps"] >= steps + 2, 60, lambda: f"the step and ptp4l's step back are seen: {clock(bed)}")
                until_clock(bed, True, "the clock is good after it was set")
                bed.arrives()
            dropped = drops(bed)
            until_clock(bed, False, "the grandmaster is gone")
            until(lambda: drops(bed) > dropped, 60, "frames are dropped as unsynchronised")
            with ptp4l(plant.b, "--priority1 100"):
                until_clock(bed, True, "the grandmaster is back")
                bed.arrives()


@whole_only
def kernel(plant):
    """the kernel's clock: a leap second is no step, a change of TAI - UTC is one; frames are held while the clock is unsynchronised"""
    host = plant.a
    with own_time(host), serving(plant, more='unsynchronised = "hold"\n') as bed:
        # A talker cannot follow a clock that is set by hours: the day comes to its end before it begins.
        for words in ("tai 36", "midnight 60", "insert"):
            set_clock(host, words)
        until_clock(bed, True, "the kernel says: synchronised")
        with bed.traffic(clock="tai"):
            steps, turns = clock(bed)["steps"], clock(bed)["transitions"]
            assert "TAI - UTC 36 s" in set_clock(host, "show"), "the leap second has passed before it could be watched"
            until(lambda: "TAI - UTC 37 s" in set_clock(host, "show"), 90, "the leap second has passed")
            bed.arrives()
            # A leap second sets CLOCK_REALTIME, and CLOCK_TAI goes on.
            assert (clock(bed)["steps"], clock(bed)["transitions"]) == (steps, turns), f"a leap second is no step: {clock(bed)}\n{bed.log()}"
            set_clock(host, "tai 38")
            until(lambda: clock(bed)["steps"] > steps, 60, lambda: f"CLOCK_TAI was set: {clock(bed)}")
            until_clock(bed, True, "CLOCK_TAI goes on")
            bed.arrives()
            # The clock is unsynchronised from here on.
            set_clock(host, "bad")
            until_clock(bed, False, "the kernel says: not synchronised")
            begun = bed.counters()
            until(lambda: bed.counters()["taken"] > begun["taken"] + 20, 60, lambda: f"frames are taken: {bed.counters()}")
            assert bed.counters()["sent"] <= begun["sent"] + 1, f"frames leave by a clock that is not good: {begun}, {bed.counters()}"
            set_clock(host, "good")
            until_clock(bed, True, "the kernel says: synchronised again")
            bed.arrives()


SCENES = (grandmaster, kernel)
