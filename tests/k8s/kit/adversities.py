# SPDX-License-Identifier: Apache-2.0
"""What an administrator or a machine gets wrong: a full disk, one prefix for two nodes, a range that is used elsewhere.

In: a cluster with KTSN and the experiment's pods. Out: one case each: it is told in clear words, or healed.
"""

import json

from .cases import Cases, expect
from .ktsn import NAMESPACE, workload
from .node import POD_RANGE
from .space import Program, until

STATES = "/var/lib/cni/ktsn"
PREFIXES = "ktsn.io/tsn-prefixes"


class Adversities(Cases):
    """Each public method is one of them."""

    def disk_full(self):
        """A full disk under tsn-cni's state: the event says so, nothing is left, and the pod comes up when there is room."""
        node = self.cluster.nodes[0]
        run = node.space.run
        run("sh", "-c", f"mount -t tmpfs -o size=64k,mode=700 tmpfs {STATES} && head -c 1M /dev/zero >{STATES}/filler 2>/dev/null; true")
        try:
            self.cluster.api.apply(workload("cramped", node.name))
            self.event("cramped", STATES, "no space left")
            expect(not run("sh", "-c", f"find {STATES} -name '*.json'").strip(), "half a state was left")
            run("rm", f"{STATES}/filler")
            self.ready(["cramped"], 90)
            self.gone("cramped")
            until(lambda: not run("sh", "-c", f"find {STATES} -name '*.json'").strip(), 40, "the states are gone with their pod")
        finally:
            self.gone("cramped")
            run("umount", STATES)

    def prefixes_doubled(self):
        """An administrator gives a node the other one's prefixes: the younger node gets free ones again, and traffic goes on."""
        nodes = sorted((self.cluster.api.get("Node", node.name) for node in self.cluster.nodes),
                       key=lambda node: (node["metadata"]["creationTimestamp"], node["metadata"]["name"]))
        older, younger = (node["metadata"]["name"] for node in nodes)
        taken = nodes[0]["metadata"]["annotations"][PREFIXES]
        self.cluster.api.annotate("Node", younger, {PREFIXES: taken})

        def healed():
            has = self.cluster.api.get("Node", younger)["metadata"]["annotations"][PREFIXES]
            return has if not set(has.split(",")) & set(taken.split(",")) else None
        found = until(healed, 40, lambda: f"{younger} has other prefixes than {older}: {taken}; " + self.said())
        expect(self.cluster.api.get("Node", older)["metadata"]["annotations"][PREFIXES] == taken, "the older node's were taken away")
        expect(found == nodes[1]["metadata"]["annotations"][PREFIXES], f"not the lowest free ones, which were its own: {found}")
        until(lambda: found.split(",")[0] in self.cluster.nodes[0].space.run("cat", "/run/ktsn/node.json") +
              self.cluster.nodes[1].space.run("cat", "/run/ktsn/node.json"), 30, "the agent has seen it", 0.3)
        self.ktsn.wait_ready()
        until(self.flows, 30, "traffic goes on", 0.5)

    def flows(self):
        """Whether a short stream loses nothing."""
        try:
            self.traffic(0.2)
        except Exception:  # pylint: disable=broad-except  # not yet
            return False
        return True

    def said(self):
        return self.cluster.kubectl("logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller", "--tail=8")

    def range_taken(self):
        """A TSN network in the range of the default network's pods: the controller gives nothing away and says whose it is."""
        before = self.prefixes()
        control = self.cluster.control
        argv = [self.programs / "ktsn-controller", f"--kubeconfig={self.cluster.directory}/pki/admin.conf", f"--tsn-cidr={POD_RANGE}",
                "--leader-elect=false", "--listen=127.0.0.1:9289"]
        second = Program(control, "second-controller", argv, control.environment)
        try:
            until(lambda: "on the default network" in second.tail() and POD_RANGE in second.tail(), 20,
                  lambda: f"it says what is wrong: {second.tail()}", 0.2)
        finally:
            second.stop()
        after = self.prefixes()
        expect(after == before, json.dumps([before, after]))

    def prefixes(self):
        return {node["metadata"]["name"]: node["metadata"]["annotations"][PREFIXES] for node in self.cluster.api.list("Node")}
