# SPDX-License-Identifier: BSD-2-Clause
"""The checks of the experiments' own program, without a judgement of times; run.py runs them."""

import argparse
import json
import subprocess
import sys

import build
import experiments
import linux_build


def entries(octets):
    """Reads a cpio archive back: name, mode, content, device of each entry."""
    at, found = 0, []
    while True:
        if octets[at:at + 6] != b"070701" or at % 4:
            raise RuntimeError(f"no entry at {at}")
        fields = [int(octets[at + 6 + 8 * index:at + 14 + 8 * index], 16) for index in range(13)]
        name = octets[at + 110:at + 110 + fields[11] - 1].decode()
        at += 110 + fields[11]
        at += -at % 4
        content = octets[at:at + fields[6]]
        at += fields[6] + -fields[6] % 4
        if name == "TRAILER!!!":
            return found if at == len(octets) else f"{len(octets) - at} octets behind the end"
        found.append((name, fields[1], content, (fields[9], fields[10])))


def check_parts():
    """The initramfs can be read, wrong arguments are refused."""
    written = [("dev", 0o40755, b"", (0, 0)), ("dev/console", 0o20600, b"", (5, 1)), ("init", 0o100755, b"12345", (0, 0)), ("m/0", 0o100644, b"1234", (0, 0))]
    if (read := entries(linux_build.archive(written))) != written:
        return f"the archive reads as {read}"
    for parse, text in ((experiments.tcp_sizes, "1"), (experiments.tcp_sizes, "16,16"), (experiments.posted_counts, "8,256"), (experiments.count, "0")):
        try:
            return f"{text} was taken as {parse(text)}"
        except argparse.ArgumentTypeError:
            pass
    return None


def check_linux_guest(out):
    """The Linux guest's program compiles without a C library, and needs nothing at run time."""
    program = out / "linux-guest"
    build.run([*linux_build.COMPILER, *build.WARNINGS, build.HERE / "linux_guest.c", "-o", program])
    undefined = build.run(["nm", "--undefined-only", program])
    return f"it needs {undefined}" if undefined else None


def check_freertos(out):
    """A short round with the FreeRTOS guest: each configuration is there, and nothing is lost or doubled."""
    command = [sys.executable, build.HERE / "experiments.py", "--out", out, "--guest", "freertos", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return f"status {done.returncode}: {done.stdout[-500:]}{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    runs = [line["run"] for line in lines if "run" in line]
    found = [(run["path"], run["load"], run["payload_octets"], run["posted_max"]) for run in runs]
    trips, streams = [("ping-pong", 1, 8), ("ping-pong", 1448, 8)], [("receive", 1448, 255), ("send", 1448, 255)]
    expected = [("freertos", *one) for one in (*trips, ("receive", 1448, 8), ("send", 1448, 8), *streams)]
    expected += [("freertos-vhost-user", *one) for one in (*trips, *streams)]
    if found != expected:
        return f"the runs are {found}"
    for run in runs:
        if run["posted_peak_octets"] != run["posted_max"] * experiments.BUFFER_OCTETS or not run["interrupts"]:
            return f"unexpected figures: {run}"
        if len(run.get("trips_ns", [])) != (200 if run["load"] == "ping-pong" else 0):
            return f"{len(run['trips_ns'])} round trips"
    return None


def tests(run):
    run.check("experiments/parts", check_parts)
    run.check("experiments/linux guest", lambda: check_linux_guest(run.out))
    run.check("experiments/freertos", lambda: check_freertos(run.out))
