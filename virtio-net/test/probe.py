#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Builds the cyclic probe of ports/probe: as a FreeRTOS guest for QEMU's riscv64, and as a Linux program.

probe.py --out DIRECTORY [--only freertos|linux]   prints the path of each program, a line each. Exit status 3: a compiler is missing.
"""

import argparse
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
import build  # noqa: E402
import rtos_build  # noqa: E402

PROBE = build.ROOT / "ports" / "probe"
QEMU = ["qemu-system-riscv64", "-M", "virt", "-bios", "none", "-m", "16M", "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio"]
SECONDS = 60


def linux(out):
    program = out / "probe-linux"
    build.run(["cc", *build.WARNINGS, "-O2", "-pthread", PROBE / "probe.c", PROBE / "linux.c", "-o", program])
    return program


def freertos(out):
    machine = "riscv64"
    guest = rtos_build.GUEST
    headers = [*rtos_build.flags([guest, rtos_build.PORTS / "guest", rtos_build.PORTS / "lwip", guest / "include", build.BARE],
                                 [*rtos_build.kernel_headers(machine), rtos_build.lwip() / "src" / "include",
                                  rtos_build.lwip() / "contrib" / "ports" / "freertos" / "include"]), "-ffunction-sections"]
    objects = rtos_build.third_party(machine, out / "probe-kernel", rtos_build.kernel_sources(machine), headers)
    return rtos_build.link(machine, out / "probe-freertos.elf", headers,
                           [PROBE / "probe.c", PROBE / "freertos.c", guest / "string.c", *rtos_build.MACHINE_SOURCES[machine], *objects])


BUILDERS = {"freertos": freertos, "linux": linux}


def latencies(text):
    """The latencies of a probe's output; raises where a number is missing."""
    found = []
    for line in text.splitlines():
        thread, number, latency = (int(part) for part in line.split(":"))
        if (thread, number) != (0, len(found)):
            raise RuntimeError(f"line {line!r} came after {len(found)} latencies")
        found.append(latency)
    return found


def check(command, loops):
    """Every wake-up of a run is printed, in order, and none before its time."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        return f"exit status {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
    found = latencies(done.stdout)
    return None if len(found) == loops and any(found) else f"{len(found)} latencies of {loops}: {found[:10]}"


def tests(run):
    run.check("probe/linux", lambda: check([linux(run.out), "period_us=1000,loops=300"], 300))
    run.check("probe/freertos", lambda: check_guest(run, "period_us=2000,loops=300,workers=3", 300))
    run.check("probe/refusals", lambda: check_refusals(run))


def check_guest(run, settings, loops):
    return check([*QEMU, "-kernel", freertos(run.out), "-append", settings], loops)


def check_refusals(run):
    guest = [*QEMU, "-kernel", run.out / "probe-freertos.elf", "-append"]
    for command in ([run.out / "probe-linux", "period_us=0,loops=3"], [*guest, "period_us=1500,loops=3"], [*guest, "loops=3,workers=17"]):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS)
        if done.returncode == 0 or "period_us=N" not in done.stdout + done.stderr:
            return f"{command[-1]} was not refused: {done.returncode} {done.stdout}{done.stderr}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", choices=sorted(BUILDERS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in [arguments.only] if arguments.only else sorted(BUILDERS):
            print(BUILDERS[name](arguments.out.resolve()))
    except FileNotFoundError as error:
        print(f"{error.filename} is not here", file=sys.stderr)
        return 3
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
