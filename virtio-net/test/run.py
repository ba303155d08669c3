#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Builds the virtio-net driver and runs all of its tests.

run.py [--out DIRECTORY] [--only TEXT]   all tests; the last line is 'N passed, N failed, N skipped', also in DIRECTORY/closing.txt
run.py --fuzz SECONDS                    the hostile device for so long; exit status 1 on a finding
run.py --rtems PREFIX                    the guest under the RTEMS 6 in PREFIX (docs/guide/rtems.md)
run.py --bench                           what depends on time: boot, and interrupts for each frame, against their bars

No test judges how long something took; --bench does, and wants a quiet machine.
"""

import argparse
import functools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import traceback

sys.dont_write_bytecode = True
import build  # noqa: E402
import experiments_checks  # noqa: E402
import peer  # noqa: E402
import places  # noqa: E402
import probe  # noqa: E402
import rtos  # noqa: E402
import testpmd  # noqa: E402

COMBINATIONS = [(machine, transport) for machine in build.GUESTS for transport in peer.TRANSPORTS
                if machine != "i386" or transport.startswith("pci")]
EVENT, PACKED, MERGEABLE = ("event index",), ("packed",), ("mergeable",)
# Options in guests: each on every transport that can have it, and on one transport of the other machines.
WITH_OPTIONS = [
    *(("riscv64", transport, EVENT) for transport in peer.TRANSPORTS),
    *(("riscv64", transport, names) for transport in ("mmio 2", "pci modern") for names in (PACKED, PACKED + EVENT)),
    *(("riscv64", transport, MERGEABLE) for transport in peer.TRANSPORTS),
    ("riscv64", "mmio 2", PACKED + EVENT + MERGEABLE),
    ("aarch64", "mmio 2", PACKED + EVENT), ("aarch64", "pci legacy", MERGEABLE), ("i386", "pci modern", PACKED + EVENT + MERGEABLE),
    ("i386", "pci legacy", EVENT),
]
# QEMU offers these with a tap only.
ON_TAP = [
    *(("riscv64", transport, ("checksum",)) for transport in peer.TRANSPORTS),
    ("riscv64", "mmio 2", PACKED + EVENT + MERGEABLE + ("checksum",)),
    *(("riscv64", transport, ("queues",)) for transport in peer.TRANSPORTS if transport.startswith("pci")),
    ("riscv64", "pci modern", PACKED + EVENT + ("checksum", "queues")),
]
# Behind vhost-user, where DPDK's testpmd polls the rings. It drops what finds no buffer posted: there must be one for each frame under
# way, and for each that a run of the bottom half takes before it posts again (its budget, 16).
BEHIND_SWITCH = [*(("riscv64", transport, ()) for transport in peer.TRANSPORTS), ("riscv64", "pci modern", PACKED + EVENT),
                 ("aarch64", "mmio 2", ()), ("i386", "pci legacy", ()), ("i386", "pci modern", ())]
FOR_SWITCH = ["-DRX_POSTED_MIN=32", "-DBUFFERS=64"]
# What QEMU's device must offer for an option; it offers the others by default.
DEVICE_PROPERTIES = {"event index": ",event_idx=on", "packed": ",packed=on", "mergeable": ",mrg_rxbuf=on",
                     "checksum": ",csum=on,guest_csum=on", "queues": ",mq=on,vectors=0"}
ECHOES, WINDOW = 20_000, 8
ICOUNT = ("-icount", "shift=0,sleep=off")
ICOUNT_FRAMES = 1000
BASELINE = build.HERE / "instructions.txt"
TOLERANCE = 0.02
INSTRUCTIONS_MAX = 400
CODE_MAX, BUFFERS_MAX = 10 * 1024, 20 * 1024
FUZZ_SMOKE = 10
BOOT_MAX, INTERRUPTS_MAX = 0.1, 0.3


class Run:
    """Counts and names the checks."""

    def __init__(self, out, only):
        self.out, self.only, self.checks, self.figures = out, only, [], {}

    def check(self, name, body):
        """One check: `body` returns None, or what is wrong."""
        if self.only and self.only not in name:
            return
        try:
            wrong = body()
        except Exception as error:  # noqa: BLE001 - a check that breaks has failed, and the others go on
            wrong = f"{error}" if isinstance(error, RuntimeError) else traceback.format_exc()
        self.add(name, wrong)

    def add(self, name, wrong):
        self.checks.append({"name": name, "outcome": "failed" if wrong else "passed"} | ({"reason": wrong} if wrong else {}))
        print(f"FAILED {name}: {wrong}" if wrong else f"ok {name}", flush=True)

    def finish(self):
        failed = sum(check["outcome"] == "failed" for check in self.checks)
        failed += not self.checks
        closing = f"{len(self.checks) - failed} passed, {failed} failed, 0 skipped"
        document = {"schema": "ktsn.results/1", "experiment": "virtio-net", "command": sys.argv, "checks": self.checks,
                    "figures": self.figures}
        (self.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.out / "closing.txt").write_text(closing + "\n")
        print(closing)
        return 1 if failed else 0


def host_program(run, compiler, name, sanitized=True, driver=build.ALL_OPTIONS):
    """Each test of a program on the host is a check of its own."""
    label = f"host/{compiler}/{name}" + ("" if driver else "/no options")
    if run.only and run.only not in label:
        return
    try:
        program = build.host_test(compiler, name, run.out, sanitized, driver=driver)
        done = subprocess.run([program], capture_output=True, text=True, timeout=600)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        run.add(label, str(error))
        return
    said = done.stdout
    for part in re.split(r"^test ", said, flags=re.M)[1:]:
        test, _, rest = part.partition("\n")
        closed = re.search(r"^\d+ passed, \d+ failed$", rest, re.M)
        # The last test of a program that died has no line behind it.
        died = part is re.split(r"^test ", said, flags=re.M)[-1] and not closed
        run.add(f"{label}/{test}", rest + done.stderr if died or f"FAILED {test}" in rest else None)
    if "passed," not in said:
        run.add(label, f"it ended with status {done.returncode}: {done.stderr[-2000:]}")


def check_echo(run, machine, transport, program, device="", options=0):
    """Frames of all lengths, none lost. `options`: those that must be in use, with the device's properties `device`."""
    with peer.Guest(machine, transport, program, device=device) as guest:
        before = guest.figures()
        for count, window, octets in ((ECHOES, WINDOW, 60), (2000, WINDOW, 1514), (2000, 1, 14 + 1 + 4)):
            if (back := guest.echo(count, window, octets)) != count:
                return f"{back} of {count} frames of {octets} octets came back at window {window}: {guest.said_so_far()}"
        after = guest.figures()
        run.figures[f"{machine} {transport}" + (f" options {options}" if options else "")] = after
        if after["options"] != options:
            return f"options {after['options']} are in use, expected {options}"
        is_mergeable = options & build.OPTIONS["mergeable"]
        if after["segmented_frames"] != (2000 if is_mergeable else 0):
            return f"{after['segmented_frames']} frames came in segments"
        if after["rx_posted_peak"] != (16 if is_mergeable else 8) or after["restarts"] or after["rx_frames"] - before["rx_frames"] != ECHOES + 4001:
            return f"unexpected figures: {after}"
        return None if guest.quit() else "the guest did not end well"


def check_tap(run, machine, transport, program, device, options):
    pairs = 4 if options & build.OPTIONS["queues"] else 1
    figures = peer.on_tap(machine, transport, program, device, pairs, ECHOES)
    run.figures[f"{machine} {transport} tap options {options}"] = figures
    if figures["echoes"] != ECHOES or figures["datagrams"] != ECHOES // 10 or figures["restarts"]:
        return f"lost: {figures}"
    if figures["options"] != options or figures["pairs"] != pairs:
        return f"options {figures['options']} and {figures['pairs']} pairs are in use, expected {options} and {pairs}"
    if not options & build.OPTIONS["checksum"]:
        return None
    # The kernel leaves the checksums of its datagrams to the guest's device, and takes the answers.
    return None if figures["partial_frames"] >= figures["datagrams"] else f"no partial checksums: {figures}"


def check_switch(run, machine, transport, program, device, options):
    figures = testpmd.in_namespace("echo", machine, transport, program, device, ECHOES)
    run.figures[f"{machine} {transport} switch options {options}"] = figures
    if figures["echoes"] != [ECHOES, ECHOES // 10, ECHOES // 10] or figures["restarts"] or not figures["is_content"]:
        return f"lost: {figures}"
    return None if figures["options"] == options else f"options {figures['options']} are in use, expected {options}"


def check_user(machine, transport, program):
    with peer.Guest(machine, transport, program, user=True) as guest:
        count = guest.echo_datagrams(2000, 1000)
        return None if count == 2000 else f"{count} of 2000 datagrams came back"


def check_adaptive(run):
    program = build.guest("riscv64", run.out, "adaptive", ["-DRX_POSTED_MAX=64", "-DBUFFERS=96"])
    with peer.Guest("riscv64", "mmio 2", program) as guest:
        if guest.echo(ECHOES, 32) != ECHOES:
            return "frames were lost"
        figures = guest.figures()
        run.figures["adaptive"] = figures
        if not 8 < figures["rx_posted_peak"] <= 64 or figures["rx_starved"] == 0:
            return f"the bound did not follow the load: {figures}"
        return None if guest.quit() else "the guest did not end well"


def instructions(program, octets):
    with peer.Guest("riscv64", "mmio 2", program, ICOUNT) as guest:
        before = guest.figures()
        assert guest.echo(ICOUNT_FRAMES, 1, octets) == ICOUNT_FRAMES, "frames were lost"
        after = guest.figures()
        return (after["instructions"] - before["instructions"]) / (ICOUNT_FRAMES + 1)


def check_instructions(run, program):
    """Instructions of the bottom half for an echoed frame, echo included, with a clock that counts instructions."""
    baseline = float(re.search(r"^[\d.]+", BASELINE.read_text(), re.M)[0])
    found = run.figures["instructions"] = statistics.median(instructions(program, octets) for octets in (60, 1462, 60))
    print(f"   {found:.1f} instructions for each echoed frame, {BASELINE.name} says {baseline}")
    if found > INSTRUCTIONS_MAX:
        return f"{found:.1f} instructions for each frame, at most {INSTRUCTIONS_MAX}"
    if abs(found - baseline) > TOLERANCE * baseline:
        return f"{found:.1f} instructions for each frame are more than 2 % off {baseline}: {BASELINE.name} holds the figure"
    return None


def check_size(run):
    weights = run.figures["octets"] = build.weigh(run.out)
    print(f"   octets of code and data, riscv64 -Os: {weights}")
    if weights["core"] + weights["mmio"] > CODE_MAX:
        return f"ring, core and MMIO have {weights['core'] + weights['mmio']} octets, at most {CODE_MAX}"
    return None


def check_fences(run):
    """VIRTIO_F_ORDER_PLATFORM: hardware lies outside the domain of the processors, for which C's fences are."""
    found, wanted = build.fences(run.out), {"dmb osh", "dmb oshld", "dmb sy"}
    return None if found == wanted else f"the driver's fences on aarch64 are {sorted(found)}, expected {sorted(wanted)}"


def check_memory(run):
    figures = run.figures.get("riscv64 mmio 2")
    if not figures:
        return "no guest has said its figures"
    print(f"   buffers {figures['buffer_octets']}, with rings {figures['memory_octets']}, device {figures['device_octets']} octets")
    return None if figures["buffer_octets"] <= BUFFERS_MAX else f"buffers have {figures['buffer_octets']} octets, at most {BUFFERS_MAX}"


def fuzz(out, seconds):
    """Runs the hostile device. Returns what is wrong, or None."""
    program, corpus = build.fuzzer(out), out / "corpus"
    corpus.mkdir(exist_ok=True)
    options = [f"-max_total_time={seconds}", "-max_len=512", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    done = subprocess.run([program, *options, f"-artifact_prefix={out}/", corpus], capture_output=True, text=True)
    runs = re.search(r"number_of_executed_units: *(\d+)", done.stderr)
    print(f"   {runs[1] if runs else 'no'} inputs in {seconds} s")
    if done.returncode != 0:
        return f"finding: {done.stderr[-3000:]}\n  again: {program} FILE"
    return None if runs and int(runs[1]) > 0 else "it ran nothing"


def tests(run):
    for compiler in ("gcc", "clang"):
        run.check(f"freestanding/{compiler}", lambda compiler=compiler: build.freestanding(compiler, run.out))
        for name in ("unit_path", "unit_faults", "unit_rings", "unit_header", "unit_queues", "unit_devices"):
            host_program(run, compiler, name)
        host_program(run, compiler, "unit_path", driver=0)
    host_program(run, "gcc", "model", sanitized=False)
    run.check("fuzz", lambda: fuzz(run.out, FUZZ_SMOKE))
    program = functools.cache(lambda machine, driver=0: build.guest(machine, run.out, driver=driver))
    for machine in build.GUESTS:
        run.check(f"build/{machine}", lambda machine=machine: program(machine) and None)
    for machine, transport in COMBINATIONS:
        run.check(f"echo/{machine}/{transport}", lambda machine=machine, transport=transport:
                  check_echo(run, machine, transport, program(machine)))
    places.tests(run, program)
    for machine, transport, names in WITH_OPTIONS:
        options = sum(build.OPTIONS[name] for name in names)
        device = "".join(DEVICE_PROPERTIES[name] for name in names)
        run.check(f"echo/{machine}/{transport}/{' and '.join(names)}", lambda machine=machine, transport=transport, options=options,
                  device=device: check_echo(run, machine, transport, program(machine, options), device, options))
    for machine, transport, names in ON_TAP:
        options = sum(build.OPTIONS[name] for name in names)
        device = "".join(DEVICE_PROPERTIES[name] for name in names)
        run.check(f"tap/{machine}/{transport}/{' and '.join(names)}", lambda machine=machine, transport=transport, options=options,
                  device=device: check_tap(run, machine, transport, program(machine, options), device, options))
    for machine, transport, names in BEHIND_SWITCH:
        options = sum(build.OPTIONS[name] for name in names)
        device = "".join(DEVICE_PROPERTIES[name] for name in names)
        run.check("/".join(["switch", machine, transport, *([" and ".join(names)] if names else [])]),
                  lambda machine=machine, transport=transport, options=options, device=device:
                  check_switch(run, machine, transport, build.guest(machine, run.out, "polled", FOR_SWITCH, options), device, options))
    for machine, transport in (("riscv64", "mmio 2"), ("i386", "pci legacy")):
        run.check(f"user/{machine}/{transport}", lambda machine=machine, transport=transport:
                  check_user(machine, transport, program(machine)))
    run.check("adaptive", lambda: check_adaptive(run))
    run.check("fences", lambda: check_fences(run))
    run.check("size", lambda: check_size(run))
    run.check("memory", lambda: check_memory(run))
    run.check("instructions", lambda: check_instructions(run, program("riscv64")))
    rtos.tests(run)
    probe.tests(run)
    experiments_checks.tests(run)


def measure(run, machine, transport, program, label, guest_class=peer.Guest):
    """First frame and interrupts, the median of five runs."""
    boots, rates = [], []
    for _ in range(5):
        with guest_class(machine, transport, program) as guest:
            boots.append(guest.boot)
            before = guest.figures()
            assert guest.echo(4000, 4) == 4000, "frames were lost"
            rates.append((guest.figures()["interrupts"] - before["interrupts"]) / 4000)
    boot, rate = statistics.median(boots), statistics.median(rates)
    print(f"   {label}: first frame after {boot * 1e3:.0f} ms ({min(boots) * 1e3:.0f} to {max(boots) * 1e3:.0f}),"
          f" {rate:.3f} interrupts for each frame at window 4 ({min(rates):.3f} to {max(rates):.3f})", flush=True)
    run.figures[label] = {"boot_s": boots, "interrupts_per_frame": rates}
    return boot, rate


def bench(run):
    for machine in build.GUESTS:
        program = build.guest(machine, run.out)
        for transport in (transport for other, transport in COMBINATIONS if other == machine):
            boot, rate = measure(run, machine, transport, program, f"{machine} {transport}")
            # QEMU's firmware for i386 takes most of the time to the first frame: it is printed, not judged.
            if machine != "i386":
                slow = f"{boot * 1e3:.0f} ms, at most {BOOT_MAX * 1e3:.0f}"
                run.add(f"boot/{machine}/{transport}", None if boot <= BOOT_MAX else slow)
            many = f"{rate:.3f}, at most {INTERRUPTS_MAX}"
            run.add(f"interrupts/{machine}/{transport}", None if rate <= INTERRUPTS_MAX else many)
    rtos.bench(run, measure, BOOT_MAX, INTERRUPTS_MAX)


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/virtio-net"))
    parser.add_argument("--only", default="")
    parser.add_argument("--fuzz", type=int, metavar="SECONDS")
    parser.add_argument("--rtems", type=pathlib.Path, metavar="PREFIX")
    parser.add_argument("--bench", action="store_true")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    run = Run(out, arguments.only)
    if arguments.fuzz:
        wrong = fuzz(out, arguments.fuzz)
        print(f"FAILED {wrong}" if wrong else "fuzz-virtio-net: no finding")
        return 1 if wrong else 0
    if arguments.rtems:
        rtos.rtems(run, arguments.rtems)
    elif arguments.bench:
        bench(run)
    else:
        tests(run)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
