# SPDX-License-Identifier: Apache-2.0
"""Pods of other kinds: another C library, a preloaded library of its own, none at all, other addresses, other mistakes.

In: a cluster with KTSN and the experiment's pods, images of such kinds. Out: one case for each; a program is served when
ktsnd counts its frames as sent, which no frame that the kernel sent is.
"""

import contextlib
import json
import pathlib

from .cases import Cases, expect
from .images import reference
from .ktsn import addresses, network, workload
from .space import until

LIBRARY = "/usr/lib/ktsn/libktsn.so"
UNHEARD = 7999  # no program listens there
MONOTONIC, TAI = 1, 11
# The agent waits a minute before it says that a program does not use its slot, and looks every quarter of one.
TOLD_AFTER = 100


class Kinds(Cases):
    """Each public method is one kind, or some that are alike."""

    def __init__(self, ktsn, programs, listener):
        super().__init__(ktsn, programs, listener)
        self.node, self.unserved = self.cluster.nodes[0], None

    # Helpers.

    def talker(self, kind, networks="tsn", clock=TAI, environment=(), **options):
        """A pod that is one talking process, for minutes."""
        to = addresses(self.cluster.api.get("Pod", "listener"))["net1"]
        name = options.pop("name", kind)
        pod = workload(name, self.node.name, networks, restartPolicy="Never", **options)
        container = pod["spec"]["containers"][0]
        container["image"] = reference(kind)
        container["command"] = ["/talker", to, str(UNHEARD), "count=60000", "period_us=5000", "lead_us=3000", f"clock={clock}"]
        container["env"] = [{"name": key, "value": value} for key, value in environment]
        return pod

    def attachment(self, pod):
        """The counters of a pod's interface, by the name that tsn-cni's saved state gives it; empty: it is not attached."""
        names = set()
        for file in pathlib.Path(f"/proc/{self.node.space.pid}/root/var/lib/cni/ktsn").glob("*/*.json"):
            with contextlib.suppress(FileNotFoundError):  # another pod's, and gone meanwhile
                state = json.loads(file.read_text())
                names |= {state["attachment"]} if state.get("pod", {}).get("name") == pod else set()
        counters = self.ktsn.attachments(self.node, self.programs)["statistics"]["attachments"]
        return next((one for one in counters if one["name"] in names), {})

    def served(self, pod, frames=300):
        """Until ktsnd has sent so many frames of a pod; the counters."""
        def enough():
            counters = self.attachment(pod)
            return counters if counters.get("sent", 0) >= frames else None
        return until(enough, 30, lambda: f"frames of {pod} sent by ktsnd: {self.attachment(pod)}; "
                     + self.cluster.kubectl("logs", pod, check=False).stdout[-500:], 0.2)

    def mapped(self, pod):
        """The libraries that a pod's talker has mapped."""
        found = self.ktsn.processes(self.node, "talker", self.cluster.api.get("Pod", pod))
        return "".join(pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in found)

    @contextlib.contextmanager
    def running(self, *pods):
        """These pods, Ready; deleted afterwards."""
        names = [pod["metadata"]["name"] for pod in pods]
        try:
            self.cluster.api.apply(*pods)
            self.ready(names)
            yield
        finally:
            self.gone(*names)

    # Cases.

    def kinds_served(self):
        """Alpine's C library, an image with its own LD_PRELOAD, a static Go program by the kernel's capture: all are served."""
        self.cluster.api.apply(network("captured", capture="kernel", late="send", overrun_limit="5s"))
        with self.running(self.talker("musl", environment=[("LD_PRELOAD", LIBRARY)]), self.talker("jemalloc"),
                          self.talker("static", "captured", MONOTONIC, resource=0)):
            for kind in ("musl", "jemalloc", "static"):
                counters = self.served(kind)
                expect(not counters["dropped"], f"{kind}: dropped {counters['dropped']}")
            maps = self.mapped("jemalloc")
            expect("libjemalloc" in maps and LIBRARY in maps, f"the image's own library or KTSN's is not loaded: {maps}")

    def policy_comes_later(self):
        """An egress NetworkPolicy that comes after the pod: its frames are dropped and counted, none leaves, until it is deleted."""
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny-later"},
                  "spec": {"podSelector": {"matchLabels": {"guarded": "later"}}, "policyTypes": ["Egress"]}}
        pod = self.talker("musl", name="overtaken", environment=[("LD_PRELOAD", LIBRARY)])
        pod["metadata"]["labels"]["guarded"] = "later"

        def dropped(least):
            counters = self.attachment("overtaken")
            return counters if counters.get("dropped", {}).get("network_policy", 0) >= least else None

        with self.running(pod):
            self.served("overtaken", 100)
            self.cluster.api.apply(policy)
            try:
                before = until(lambda: dropped(10), 30, lambda: f"frames dropped: {self.attachment('overtaken')}", 0.05)
                after = until(lambda: dropped(200), 30, lambda: f"more of them: {self.attachment('overtaken')}", 0.05)
                expect(after["sent"] == before["sent"], f"frames left under the policy: {before}, {after}")
                expect(after["bypassed"] == before["bypassed"], f"frames took the kernel's way: {before}, {after}")
            finally:
                self.cluster.api.delete("NetworkPolicy", "deny-later")
            self.served("overtaken", after["sent"] + 100)

    def dual_stack(self):
        """Ranges of both families: pods have an address of each, and timed frames flow over IPv6 too."""
        pod = self.cluster.api.get("Pod", "listener")
        told = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        there = next(status["ips"] for status in told if status["interface"] == "net1")
        expect(len(there) == 2 and "." in there[0] and there[1].startswith("fd99:"), f"addresses of net1: {there}")
        sent = self.attachment("talker")["sent"]
        self.traffic(1.0, there[1])
        expect(self.attachment("talker")["sent"] >= sent + 1000, f"not sent by ktsnd: {self.attachment('talker')}")

    def without_resource(self):
        """A pod that names the network and asks for no slot: it has its interface, and the kernel sends what it sends."""
        with self.running(self.talker("jemalloc", clock=MONOTONIC, name="slotless", resource=0)):
            until(lambda: "libjemalloc" in self.mapped("slotless"), 20, "the program runs", 0.2)
            expect(LIBRARY not in self.mapped("slotless"), "the library is there without a slot")
            expect(self.attachment("slotless")["sent"] == 0, f"{self.attachment('slotless')}")

    def unserved_started(self):
        """Pods with slots that no program uses: static without capture, a pod on the host's network."""
        self.unserved = self.leavings(self.node)
        self.cluster.api.apply(self.talker("static", clock=MONOTONIC, name="uncaptured"),
                               self.talker("jemalloc", None, MONOTONIC, name="hosted", host_network=True))
        self.ready(["uncaptured", "hosted"])

    def unserved_told(self):
        """After a minute the agent's events say why no program uses them."""
        expect(self.unserved, "unserved_started was not run")
        try:
            self.event("uncaptured", "static programs need", "capture", seconds=TOLD_AFTER)
            self.event("hosted", "host's network", seconds=TOLD_AFTER)
        finally:
            self.gone("uncaptured", "hosted")
        self.same(self.node, self.unserved)
