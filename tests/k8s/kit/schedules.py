# SPDX-License-Identifier: Apache-2.0
"""Gate schedules for all nodes or for none.

In: a cluster with KTSN and the experiment's pods. Out: one case for each way that a GateSchedule can go
(docs/design/kubernetes.md). What counts is what both ktsnd say and when frames arrive, not what the object says alone.
"""

import contextlib
import json
import time

from .cases import PORT, Cases, Stream, expect
from .ktsn import addresses, kill, network, workload
from .space import until

CYCLE, WINDOW = 10_000_000, 2_000_000
LABEL = "ktsn-e2e-line"
BESIDE = "beside0"
LEADS, APPLIED = "\nktsn_controller_leader 1\n", '\nktsn_controller_gate_schedules{phase="Applied"} 1\n'


def gate_schedule(name, window=WINDOW, **spec):
    """Class 6, the talker's, has the beginning of each cycle, everybody else the rest."""
    table = {"gate-enabled": True, "admin-cycle-time": CYCLE, "admin-control-list": [
        {"gate-states-value": 0x40, "time-interval-value": window},
        {"gate-states-value": 0xBF, "time-interval-value": CYCLE - window}]}
    return {"apiVersion": "ktsn.io/v1alpha1", "kind": "GateSchedule", "metadata": {"name": name},
            "spec": {"gate-parameter-table": table} | spec}


def stream(name, to, port, **spec):
    """What the talker sends: a datagram of 64 octets each millisecond."""
    return {"apiVersion": "ktsn.io/v1alpha1", "kind": "Stream", "metadata": {"name": name}, "spec": {
        "talker": {"podSelector": {LABEL: "talks"}}, "priority": 6,
        "data-frame-specification": {"destination-ip-address": to, "destination-port": port},
        "traffic-specification": {"interval": {"numerator": 1, "denominator": 1000}, "max-frames-per-interval": 1, "max-frame-size": 92}} | spec}


class Schedules(Cases):
    """Each public method is one way that a schedule goes."""

    # Helpers.

    def gates(self, node, port="eth0"):
        """What ktsnd says of a port; nothing where it does not know it, or is away."""
        done = node.space.run(self.programs / "ktsn", "schedule", "status", "--run-dir", "/run/ktsn", "--json", check=False)
        ports = json.loads(done.stdout)["ports"] if done.returncode == 0 else []
        return next((state for state in ports if state["port"] == port), {})

    def holds(self, node, name):
        """Whether a schedule of this name is what a node's gates follow, or are about to."""
        return self.gates(node).get("name", "").startswith(f"k8s/{name}@")

    def phase(self, name, wanted, seconds=60):
        """Until the object is that far; its status."""
        def there():
            status = self.cluster.api.get("GateSchedule", name).get("status", {})
            return status if status.get("phase") == wanted else None
        return until(there, seconds, lambda: f"{name} {wanted}: " + json.dumps(self.cluster.api.get("GateSchedule", name)["status"]))

    def away(self, name, *nodes):
        """Deletes it and waits until no gate follows it."""
        self.cluster.api.delete("GateSchedule", name)
        for node in nodes or self.cluster.nodes:
            until(lambda: not self.holds(node, name), 30, lambda: f"{name} is gone from {node.name}: {self.gates(node)}", 0.3)  # noqa: B023

    def in_phase(self, name, instant):
        """Both nodes follow it, since `instant` or in step with it; what they say."""
        def there():
            said = [self.gates(node) for node in self.cluster.nodes]
            good = all(one.get("name", "").startswith(f"k8s/{name}@") and not one["config_pending"] and one["oper"]["cycle_time"] == CYCLE
                       and (one["oper"]["base_time"] - instant) % CYCLE == 0 for one in said)
            return said if good else None
        return until(there, 40, lambda: f"{name} in step with {instant}: {[self.gates(node) for node in self.cluster.nodes]}", 0.3)

    # Cases.

    def schedule_applied(self):
        """A GateSchedule for both nodes: one ConfigChangeTime, both follow it, and frames leave within their windows."""
        name = "everywhere"
        self.cluster.api.apply(gate_schedule(name))
        try:
            instant = self.phase(name, "Applied")["accepted"]["configChangeTime"]
            said = self.in_phase(name, instant)
            expect([one["config_change_time"] for one in said] == [instant] * 2, f"not the same instant {instant}: {said}")
            stream = Stream(self.ktsn, 3)
            lost, gap = stream.end()
            expect(lost == 0, f"{lost} frames lost, longest gap {gap:.3f} s")
            offsets = [int(row["received_at"]) % CYCLE for row in stream.rows]
            # A frame that was asked for outside of the window waits for the next; on a busy machine some arrive after it.
            inside = sum(offset < WINDOW + 1_000_000 for offset in offsets) / len(offsets)
            expect(inside > 0.9, f"{inside:.3f} of {len(offsets)} frames arrived within {WINDOW / 1e6} ms of the cycle's begin and 1 ms more")
            print(f"       {inside:.4f} of the frames arrived in their windows of a fifth of the cycle, or 1 ms later", flush=True)
        finally:
            self.away(name)
        self.traffic()

    def schedule_refused(self):
        """One node of two has no such uplink: it refuses with clear words, and the other one has nothing either."""
        near, _ = self.cluster.nodes
        near.space.ip(f"link add {BESIDE} type veth peer name {BESIDE}p")
        try:
            for device in (BESIDE, f"{BESIDE}p"):
                near.space.ip(f"link set {device} up")
            # An attachment makes the uplink known to ktsnd, on this node alone.
            self.cluster.api.apply(network("beside", uplink=BESIDE, overlay="none", destinations=["10.98.0.0/16"]))
            self.cluster.api.apply(workload("beside", near.name, "beside"))
            self.ready(["beside"])
            until(lambda: self.gates(near, BESIDE), 20, f"ktsnd knows {BESIDE}", 0.3)
            self.cluster.api.apply(gate_schedule("half", uplink=BESIDE))
            rejected = self.phase("half", "Rejected")["rejected"]
            expect(rejected["reason"] == "NodeRefused" and "node2" in rejected["message"] and BESIDE in rejected["message"], rejected)
            expect(not self.gates(near, BESIDE).get("name"), f"one node has it: {self.gates(near, BESIDE)}")
        finally:
            self.cluster.api.delete("GateSchedule", "half")
            self.gone("beside")
            near.space.ip(f"link del {BESIDE}")

    def schedule_for_joining(self):
        """A node that joins what a GateSchedule is for gets it in step; so does one whose ktsnd was killed."""
        near, far = self.cluster.nodes
        name = "line"
        self.cluster.api.label("Node", near.name, **{LABEL: "yes"})
        self.cluster.api.apply(gate_schedule(name, nodeSelector={LABEL: "yes"}))
        try:
            status = self.phase(name, "Applied")
            instant = status["accepted"]["configChangeTime"]
            expect(status["accepted"]["nodes"] == [near.name] and not self.holds(far, name), f"on the wrong nodes: {status}")
            self.cluster.api.label("Node", far.name, **{LABEL: "yes"})
            self.in_phase(name, instant)
            kill(self.ktsn.daemon(far))
            self.in_phase(name, instant)
            self.cluster.api.label("Node", far.name, **{LABEL: None})
            until(lambda: not self.holds(far, name), 30, lambda: f"given back by {far.name}: {self.gates(far)}", 0.3)
            expect(self.holds(near, name), f"{near.name} has lost it: {self.gates(near)}")
        finally:
            self.away(name)
            for node in self.cluster.nodes:
                self.cluster.api.label("Node", node.name, **{LABEL: None})

    def controller_killed(self):
        """ktsn-controller killed between the decision and its instant: both nodes have it then or neither, in the end both; one leads and counts it."""
        name = "orphaned"
        try:
            # Confirmed within milliseconds: who asks again and again may not see the phase at all.
            with self.cluster.api.watch("GateSchedule") as changes:
                self.cluster.api.apply(gate_schedule(name))
                phases = (one.get("status", {}).get("phase") for one in changes if one["metadata"]["name"] == name)
                seen = next(phase for phase in phases if phase in ("Committed", "Applied", "Rejected"))
            for node in self.cluster.nodes:
                for pid in self.ktsn.processes(node, "ktsn-controller"):
                    kill(pid)
            expect(seen == "Committed", f"{seen} before it was Committed")
            status = self.cluster.api.get("GateSchedule", name)["status"]
            instant = (status.get("candidate") or status["accepted"])["configChangeTime"]
            states = [self.gates(node) for node in self.cluster.nodes]
            # Past the instant, by the nodes' own clock.
            time.sleep(max(0, (instant - states[0]["current_time"]) / 1e9) + 0.5)
            has = [self.holds(node, name) for node in self.cluster.nodes]
            expect(has[0] == has[1], f"one node of two follows it: {[self.gates(node) for node in self.cluster.nodes]}")
            final = self.phase(name, "Applied", 120)["accepted"]["configChangeTime"]
            self.in_phase(name, final)
            until(lambda: [APPLIED in text for text in self.ktsn.controllers() if LEADS in text] == [True], 30,
                  lambda: f"one leader with one GateSchedule: {self.ktsn.controllers()}")
            print(f"       {'both' if has[0] else 'neither'} had it at the instant, both in the end", flush=True)
        finally:
            self.away(name)
        self.ktsn.wait_ready()
        self.traffic()

    def stream_judged(self):
        """A Stream is accepted where there is room, applied on its talker's node, and counts; a group as destination is refused."""
        done = self.cluster.kubectl("apply", "-f", "-", input=json.dumps(stream("group", "239.1.1.1", PORT)), check=False)
        expect(done.returncode != 0 and "unicast address" in done.stderr, f"a group as destination: {done.stderr}")
        with self.timed():
            before = self.judged("True", nodesAccepted="1/1", nodesApplied="1/1").get("frames", 0)
            self.traffic(1.0)
            until(lambda: self.cluster.api.get("Stream", "timed")["status"].get("frames", 0) >= before + 1000, 40, "its frames are counted")

    def stream_refused(self):
        """A GateSchedule leaves a Stream no room: refused with the reason; without it: accepted again."""
        with self.timed():
            self.judged("True", nodesApplied="1/1")
            try:
                # Too short for the hand-over and a frame.
                self.cluster.api.apply(gate_schedule("narrow", 5_000))
                self.phase("narrow", "Applied")
                refused = self.judged("False")
                expect(refused["status-info"]["failure-code"] == 3 and "narrow" in json.dumps(refused), f"{refused}")
            finally:
                self.away("narrow")
            self.judged("True", nodesApplied="1/1")

    @contextlib.contextmanager
    def timed(self):
        """The Stream `timed`, from the talker to the listener."""
        self.cluster.api.label("Pod", "talker", **{LABEL: "talks"})
        try:
            self.cluster.api.apply(stream("timed", addresses(self.cluster.api.get("Pod", "listener"))["net1"], PORT))
            yield
        finally:
            self.cluster.api.delete("Stream", "timed")
            self.cluster.api.label("Pod", "talker", **{LABEL: None})

    def judged(self, verdict, **also):
        """Until the Stream's condition Accepted has this status, and these keys of its status these values; the status."""
        def there():
            status = self.cluster.api.get("Stream", "timed").get("status", {})
            accepted = next((one["status"] for one in status.get("conditions", []) if one["type"] == "Accepted"), "")
            return status if accepted == verdict and all(status.get(key) == value for key, value in also.items()) else None
        return until(there, 60, lambda: f"Accepted={verdict} {also}: " + json.dumps(self.cluster.api.get("Stream", "timed")["status"]))
