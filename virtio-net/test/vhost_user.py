#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How many frames a second go to DPDK's testpmd and back, by the Rust crate and by DPDK's own virtio-user, by turns.

In: the program `echo` (an example of the crate), testpmd (Debian: dpdk-dev), two CPUs. Out: out/virtio-net/vhost-user.json, and exit
status 1 if the crate is below its bar: a million frames a second, or 0.8 of what virtio-user reaches here.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from testpmd import START_MAX, Testpmd, is_installed  # noqa: E402

FRAMES_PER_S = 1_000_000
SHARE = 0.8
WINDOW = 96  # frames under way, as in the example
BURST = 32   # frames of one `tx_first`
SECONDS = 4


def backend(folder, number):
    socket = folder / f"{number}.sock"
    testpmd = Testpmd(folder, [f"net_vhost0,iface={socket},queues=1"], 1)
    testpmd.wait_for("testpmd>")
    return testpmd, socket


def by_crate(folder, number, program):
    """Frames a second of the crate. Raises if a frame was lost."""
    testpmd, socket = backend(folder, number)
    with testpmd:
        done = subprocess.run(["taskset", "-c", "0", program, socket, str(FRAMES_PER_S * SECONDS), "60", str(SECONDS)],
                              capture_output=True, text=True, timeout=60)
        if not done.stdout:
            raise RuntimeError(f"echo: {done.stderr}")
        result = json.loads(done.stdout)
        if result["wrong"] > 0:
            raise RuntimeError(f"echo: {done.stdout}")
        return result["frames_per_s"]


def by_virtio_user(folder, number):
    """Frames a second of DPDK's own front end."""
    testpmd, socket = backend(folder, number)
    with testpmd, Testpmd(folder, [f"net_virtio_user0,path={socket},queues=1"], 0, start=False) as front:
        front.wait_for("testpmd>")
        front.say(f"start tx_first {WINDOW // BURST}")
        time.sleep(1)
        began = time.monotonic()
        front.say("show port stats 0")
        time.sleep(SECONDS)
        took = time.monotonic() - began
        front.say("show port stats 0")
        # What it prints lies in its buffer until it ends.
        front.say("stop")
        front.say("quit")
        front.process.wait(START_MAX)
        counts = [int(count) for count in re.findall(r"RX-packets: (\d+) +RX-missed", front.log.read_text(errors="replace"))]
        if len(counts) < 2 or counts[1] == counts[0]:
            raise RuntimeError(f"virtio-user: no frames: {front.log.read_text(errors='replace')[-2000:]}")
        return int((counts[1] - counts[0]) / took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the example `echo` of the crate ktsn-virtio-net")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/virtio-net/vhost-user.json"))
    arguments = parser.parse_args()
    if not is_installed():
        print("not possible here: dpdk-testpmd is missing; apt-get install dpdk-dev", file=sys.stderr)
        return 3
    own, virtio_user = [], []
    with tempfile.TemporaryDirectory(prefix="ktsn-vhost-") as name:
        folder = pathlib.Path(name)
        for number in range(arguments.rounds):
            own.append(by_crate(folder, f"c{number}", arguments.program))
            virtio_user.append(by_virtio_user(folder, f"v{number}"))
            print(f"round {number + 1}: crate {own[-1]:,} frames/s, virtio-user {virtio_user[-1]:,}", flush=True)
    bar = min(FRAMES_PER_S, SHARE * statistics.median(virtio_user))
    holds = statistics.median(own) >= bar
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"crate_frames_per_s": own, "virtio_user_frames_per_s": virtio_user, "bar_frames_per_s": bar, "holds": holds}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"median {statistics.median(own):,.0f} frames/s, bar {bar:,.0f}: {'holds' if holds else 'DOES NOT HOLD'}; {arguments.out}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
