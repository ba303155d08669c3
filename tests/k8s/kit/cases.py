# SPDX-License-Identifier: Apache-2.0
"""What all cases share: a stream that runs meanwhile, waiting for pods and events, and what a pod may leave on its node.

In: a cluster with KTSN and the experiment's pods (`talker` and `listener`, on two nodes, both networks). Out: `Cases`, whose
public methods in the classes built on it are one case each: it raises when something is lost that must not be, and leaves
the cluster as it found it.
"""

import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from . import build
from .cluster import condition
from .ktsn import addresses, outside
from .space import Failed, until

PERIOD = 0.001
# Cases that run side by side take turns.
STREAMING = threading.Lock()
PORT = 7100
# After the talker's end every frame is there by then.
ARRIVED = 2
# Names of KTSN's own programs as the kernel keeps them: 15 octets.
PROGRAMS = {name[:15] for file in (build.REPOSITORY / "bpf/programs").glob("*.bpf.c")
            for name in re.findall(r"^int (\w+)\(", file.read_text(), re.M)}

# What is counted on a node, by commands that write a line for each.
COUNTED = {"namespaces": "ls /run/netns", "links": "ip -o link",
           # Each device's own link-local and group routes come seconds after it.
           "routes": "ip -4 route show table all", "IPv6 routes": "ip -6 route show table all | grep -v 'fe80:\\|ff00:'",
           "neighbours": "ip neigh show nud permanent", "state files": "find /var/lib/cni/ktsn -name '*.json'",
           "pinned": "find /sys/fs/bpf -type f"}


def expect(true, what):
    if not true:
        raise Failed(what)


class Stream:
    """A talker and a listener that run while something breaks; then, what arrived and when. One at a time: there is one pair of them."""

    def __init__(self, ktsn, seconds, to=None):
        self.ktsn, self.cluster, self.frames, self.rows = ktsn, ktsn.cluster, round(seconds / PERIOD), []
        self.pods = {name: self.cluster.api.get("Pod", name) for name in ("talker", "listener")}
        self.far = outside(self.cluster.nodes[1], self.pods["listener"])
        to = to or addresses(self.pods["listener"])["net1"]
        to = f"[{to}]" if ":" in to else to
        self.listener = self._run("listener", "listen", f"{to}:{PORT}", "--count", self.frames, "--timeout", "5s",
                                  "--records", "/out/stream.csv", "--ready-fd", "1")
        self.listener.stdout.readline()
        self.talker = self._run("talker", "talk", f"{to}:{PORT}", "--count", self.frames, "--period", "1ms", "--lead", "2ms",
                                "--json", "/out/talked.json", "--ready-fd", "1")
        self.talker.stdout.readline()
        self.planned = time.monotonic() + seconds

    def _run(self, pod, *argv):
        words = [*self.cluster.kubectl_words(), "exec", pod, "--", "/usr/local/bin/ktsn", *map(str, argv)]
        environment = self.cluster.control.environment | {"HOME": str(self.cluster.directory)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def end(self):
        """(frames lost, longest silence in seconds), the silence at the end included."""
        talked = self.talker.communicate(timeout=max(0, self.planned - time.monotonic()) + 60)[1]
        try:
            # Not before the planned end: where kubelet was stopped, `kubectl exec` ends before what it runs.
            heard = self.listener.communicate(timeout=max(0, self.planned - time.monotonic()) + ARRIVED)[1]
        except subprocess.TimeoutExpired:  # frames are missing: it need not wait for its silence
            for pid in self.ktsn.processes(self.cluster.nodes[1], "ktsn", self.pods["listener"]):
                os.kill(pid, signal.SIGTERM)
            heard = self.listener.communicate(timeout=60)[1]
        expect(self.talker.returncode == 0, f"the talker ended with {self.talker.returncode}: {talked}")
        with (self.far / "stream.csv").open() as file:
            self.rows = rows = list(csv.DictReader(file))
        expect(rows, f"nothing arrived: {heard}")
        sequences = {int(row["sequence"]) for row in rows}
        first = min(rows, key=lambda row: int(row["sequence"]))
        start = int(first["tx_time"]) - int(first["sequence"]) * round(PERIOD * 1e9)
        arrived = sorted([start, *(int(row["received_at"]) for row in rows)])
        silent = [after - before for before, after in zip(arrived, arrived[1:])]
        # A stream that never goes on is silent until its planned end.
        silent.append(start + self.frames * round(PERIOD * 1e9) - arrived[-1])
        lost = self.frames - len(sequences)
        expect(lost > 0 or self.listener.returncode == 0, f"the listener ended with {self.listener.returncode}: {heard}")
        return lost, max(silent) / 1e9


class Cases:
    """Each public method of a class built on this one is a case; its first line says what must hold."""

    # Whether spans of time are held against bars; counts always are.
    judges_times = True

    def __init__(self, ktsn, programs, listener):
        self.ktsn, self.cluster, self.programs, self.listener = ktsn, ktsn.cluster, programs, listener

    def ready(self, names, seconds=60):
        """Until these pods are Ready; the pods."""
        def found():
            pods = [self.cluster.api.get("Pod", name, missing_ok=True) for name in names]
            return pods if all(condition(pod, "Ready") for pod in pods) else None
        return until(found, seconds, lambda: f"{names} Ready: " + self.cluster.kubectl("get", "events")[-1500:])

    def gone(self, *names, seconds=40):
        """Deletes pods and waits until the API has forgotten them."""
        self.cluster.api.delete("Pod", *names, seconds=seconds)

    def event(self, name, *words, seconds=30):
        """Until an event about this pod says all of these words; its message."""
        def said():
            events = self.cluster.api.list("Event", fields=f"involvedObject.name={name}")
            return next((e["message"] for e in events if all(word in e["message"] for word in words)), None)
        return until(said, seconds, lambda: f"event of {name} with {words}; there are: " + self.cluster.kubectl(
            "get", "events", "--field-selector", f"involvedObject.name={name}")[-1500:])

    def leavings(self, node):
        """Everything on a node that a TSN pod brings along: what is more afterwards has leaked."""
        run = node.space.run
        counts = run("sh", "-c", "\n".join(f"({command}) 2>/dev/null | wc -l" for command in COUNTED.values())).split()
        found = dict(zip(COUNTED, map(int, counts), strict=True))
        found["attachments"] = len(self.ktsn.attachments(node, self.programs)["attachments"])
        found["bpf programs"] = len(self.bpf_programs(node))
        # host-local's leases: a directory for each network, a file for each address.
        for line in run("sh", "-c", "cd /var/lib/cni/networks && find . -mindepth 2 -type f").split():
            network, _, lease = line.removeprefix("./").partition("/")
            if lease[0] in "0123456789abcdef" and ("." in lease or ":" in lease):
                found[f"addresses of {network}"] = found.get(f"addresses of {network}", 0) + 1
        return found

    def bpf_programs(self, node):
        """KTSN's programs that this node holds: those of its processes, those at devices of its namespaces."""
        names = {one["id"]: one.get("name") for one in json.loads(node.space.run("bpftool", "-j", "prog", "show"))}
        held = set()
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"/{node.cgroup}" in (directory / "cgroup").read_text():
                    said = "".join(file.read_text() for file in (directory / "fdinfo").iterdir())
                    held |= {int(number) for number in re.findall(r"^prog_id:\s*(\d+)", said, re.M)}
            except OSError:  # it has ended meanwhile
                continue
        shown = node.space.run("sh", "-c", "bpftool -j net; for n in /run/netns/*; do nsenter --net=$n bpftool -j net; done; true")
        held |= {int(number) for number in re.findall(r'"(?:prog_)?id":\s*(\d+)', shown)}
        return {number for number in held if names.get(number) in PROGRAMS}

    def same(self, node, before, seconds=30):
        """Until nothing is left beyond what was there."""
        left = {}

        def clean():
            left.clear()
            left.update({key: (before.get(key, 0), now) for key, now in self.leavings(node).items() if now > before.get(key, 0)})
            return not left
        until(clean, seconds, lambda: f"left on {node.name}: {left}; there are {self.named(node)}", 0.5)

    def named(self, node):
        """The states and leases of a node, by container: which pod left them."""
        return node.space.run("sh", "-c", "cd /var/lib/cni && ls ktsn; grep -rH . networks").split("\n")

    def traffic(self, seconds=1.0, to=None):
        """Timed frames flow from end to end without a loss."""
        with STREAMING:
            lost, gap = Stream(self.ktsn, seconds, to).end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.3f} s; " + self.dropped())

    def dropped(self):
        """What the sending ktsnd says of frames that it did not send."""
        counters = self.ktsn.attachments(self.cluster.nodes[0], self.programs)["statistics"]["attachments"]
        return "ktsnd: " + "; ".join(f"dropped {one['dropped']}, bypassed {one['bypassed']}" for one in counters)
