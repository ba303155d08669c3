# SPDX-License-Identifier: Apache-2.0
"""The same calls under the kernel's qdiscs and under KTSN, in one host: what the program sees, and what arrives."""

import contextlib
import pathlib
import re
import shutil

from host import on
from kit.space import until

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
OUT = pathlib.Path(__file__).resolve().parents[3] / "out/plant"
# Fast enough for an emulated host; it may come late by less.
DELTA_NS = 200_000_000
CONFIGURATION = f"""[[port]]
device = "eth0"

[[attachment]]
name = "host"
netns = "/proc/1/ns/net"
interface = "eth0"
uplink = "eth0"
destinations = ["0.0.0.0/0"]
overrun_limit = "{DELTA_NS // 1_000_000}ms"
"""
# Priority 6 has a queue of its own; what it does with frames without a time is not the calls' affair.
OWN_QUEUE = "tc qdisc replace dev eth0 root handle 1: prio bands 2 priomap 1 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1\ntc qdisc replace dev eth0 parent 1:1 "
ETF = f"etf clockid CLOCK_TAI delta {DELTA_NS}"
TAPRIO = f"""tc qdisc replace dev eth0 root handle 1: taprio num_tc 2 map 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 \
base-time 0 sched-entry S 03 1000000 flags 0x1 txtime-delay {DELTA_NS} clockid CLOCK_TAI
tc qdisc replace dev eth0 parent 1:2 {ETF} skip_sock_check"""
# Cells that differ on purpose, and what docs/txtime.md says of them.
ON_PURPOSE = (
    (r"20 s ahead$", "Far ahead"),
    (r"(group|network) without a route$", "No route"),
    (r"(no SCM_TXTIME on a socket with SO_TXTIME|no time)$", "No SCM_TXTIME"),
    (r"the time (1|2\^63|2\^64-1)(,.*)?$", "Times that no clock shows"),
)
ON_PURPOSE_OF = {"tai": ON_PURPOSE, "monotonic": (*ON_PURPOSE, (r"deadline mode", "DEADLINE_MODE on MONOTONIC"))}


@contextlib.contextmanager
def qdiscs(plant, script):
    """The uplink has these."""
    plant.a.run("set -e\n" + script)
    try:
        yield
    finally:
        plant.a.tried("tc qdisc del dev eth0 root")


@contextlib.contextmanager
def ktsn(plant):
    """ktsnd serves the programs of the host itself."""
    plant.a.run("mkdir -p /etc/ktsn; cat >/etc/ktsn/ktsnd.toml <<'END'\n" + CONFIGURATION + "END\n"
                "setsid ktsnd >/tmp/ktsnd.log 2>&1 </dev/null &\nuntil ktsn status 2>/dev/null | grep -q 'Attachments: 1'; do kill -0 $! || { cat /tmp/ktsnd.log; exit 1; }; sleep 0.2; done")
    try:
        yield
    finally:
        plant.a.tried("pkill -x ktsnd; until [ -z \"$(pidof ktsnd)\" ]; do sleep 0.1; done; rm -rf /etc/ktsn/ktsnd.toml /run/ktsn", 60)


def cells(plant, clock, before="", is_plain=True):
    """What each call gave, and what became of its datagram: how often it arrived, and the order of those whose order is asked for."""
    for name, host in (("calls.py", plant.a), ("sink.py", plant.b)):
        shutil.copyfile(PROGRAMS / name, host.share / name)
    sink = plant.b.begin("exec python3 /share/sink.py")
    until(lambda: "ready" in sink.said(), 30, "the receiver is ready")
    try:
        said = plant.a.run(f"{before} python3 /share/calls.py {clock} {plant.b.address}", 240)
        # etf with deadline_mode drops what is no deadline.
        until(lambda: not is_plain or " closed\n" in sink.said(), 30, "the datagram of a closed socket arrives")
    finally:
        plant.b.run("pkill -f sink.py; true")
    arrived = sink.wait(check=False)[1].splitlines()[1:]
    found = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    assert len(found) > 60, said
    for one in arrived:
        # How much room a socket has is no promise.
        if not one.endswith(" full"):
            found[f"arrived: {one}"] = str(arrived.count(one))
    for word in ("in turn", "of two sockets", "same"):
        found[f"order: {word}"] = ", ".join(one for one in arrived if word in one)
    return found


def different(ours, theirs):
    """(cell, ours, the kernel's) of those that differ."""
    return [(name, ours.get(name, "-"), theirs.get(name, "-")) for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]


def judged(plant, clock, theirs, title):
    """KTSN's cells against the kernel's."""
    with ktsn(plant):
        ours = cells(plant, clock, "ktsn run --")
    found = different(ours, theirs)
    count, lines, surprises = len({*ours, *theirs}), [], 0
    for name, our, their in found:
        why = next((why for pattern, why in ON_PURPOSE_OF[clock] if re.search(pattern, name)), None)
        surprises += why is None
        lines.append(f"{name}: {our}; {title}: {their} ({why or 'NOT ON PURPOSE'})")
    print(f"       {count - len(found)} of {count} cells as {title}; on purpose: {len(found) - surprises}", flush=True)
    (OUT / f"calls-{plant.card}-{plant.kernel}-{title}.txt").write_text("\n".join(lines) + "\n")
    assert not surprises, "\n".join(lines)


def deadline(name):
    """Whether a cell is about deadline mode."""
    return "deadline mode" in name


@on("igb")
def etf(plant):
    """etf, with and without deadline_mode, on CLOCK_TAI"""
    with qdiscs(plant, OWN_QUEUE + ETF):
        theirs = plant.cells_of_etf = cells(plant, "tai")
    with qdiscs(plant, OWN_QUEUE + ETF + " deadline_mode"):
        theirs = {name: cell for name, cell in theirs.items() if not deadline(name)} | {name: cell for name, cell in cells(plant, "tai", is_plain=False).items() if deadline(name)}
    judged(plant, "tai", theirs, "etf")


@on("igb")
def fq(plant):
    """fq, on CLOCK_MONOTONIC"""
    with qdiscs(plant, OWN_QUEUE + "fq"):
        theirs = cells(plant, "monotonic")
    judged(plant, "monotonic", theirs, "fq")


@on("igb")
def taprio(plant):
    """taprio with txtime-assist above etf gives a program what etf gives it"""
    with qdiscs(plant, TAPRIO):
        found = different(cells(plant, "tai"), plant.cells_of_etf)
    # txtime-assist gives a datagram without a time one, and its etf cannot ask the socket for its flags.
    surprises = [line for line in found if not re.search("no SCM_TXTIME|no time|the time 0|deadline mode", line[0])]
    assert not surprises, "\n".join(map(str, surprises))


SCENES = (etf, fq, taprio)
