# SPDX-License-Identifier: Apache-2.0
"""What breaks in a cluster, done on purpose.

In: a cluster with KTSN and the experiment's pods (`talker` and `listener`, on two nodes, both networks). Out: one method for
each fault, which raises when something is lost that must not be. Each leaves the cluster as it found it.
"""

import csv
import json
import re
import subprocess
import time

from . import build
from .cluster import condition
from .ktsn import NAMESPACE, addresses, deployment, kill, network, outside, workload
from .space import Failed, until

PERIOD = 0.001
PORT = 7100
# Names of KTSN's own programs as the kernel keeps them: 15 octets.
PROGRAMS = {name[:15] for file in (build.REPOSITORY / "bpf/programs").glob("*.bpf.c")
            for name in re.findall(r"^int (\w+)\(", file.read_text(), re.M)}


def expect(true, what):
    if not true:
        raise Failed(what)


class Stream:
    """A talker and a listener that run while something breaks; then, what arrived and when."""

    def __init__(self, cluster, seconds):
        self.cluster, self.frames = cluster, round(seconds / PERIOD)
        self.pods = {name: cluster.get("pod", name) for name in ("talker", "listener")}
        self.far = outside(cluster.nodes[1], self.pods["listener"])
        to = addresses(self.pods["listener"])["net1"]
        self.listener = self._run("listener", "listen", f"{to}:{PORT}", "--count", self.frames, "--timeout", "5s",
                                  "--records", "/out/stream.csv", "--ready-fd", "1")
        self.listener.stdout.readline()
        self.talker = self._run("talker", "talk", f"{to}:{PORT}", "--count", self.frames, "--period", "1ms", "--lead", "2ms",
                                "--json", "/out/talked.json", "--ready-fd", "1")
        self.talker.stdout.readline()

    def _run(self, pod, *argv):
        words = [*self.cluster.kubectl_words(), "exec", pod, "--", "/usr/local/bin/ktsn", *map(str, argv)]
        environment = self.cluster.control.environment | {"HOME": str(self.cluster.directory)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def end(self):
        """(frames lost, longest silence in seconds), the silence at the end included."""
        said = {name: process.communicate(timeout=60)[1] for name, process in (("talker", self.talker), ("listener", self.listener))}
        expect(self.talker.returncode == 0, f"the talker ended with {self.talker.returncode}: {said['talker']}")
        with (self.far / "stream.csv").open() as file:
            rows = list(csv.DictReader(file))
        expect(rows, f"nothing arrived: {said['listener']}")
        sequences = {int(row["sequence"]) for row in rows}
        first = min(rows, key=lambda row: int(row["sequence"]))
        start = int(first["tx_time"]) - int(first["sequence"]) * round(PERIOD * 1e9)
        arrived = sorted([start, *(int(row["received_at"]) for row in rows)])
        silent = [after - before for before, after in zip(arrived, arrived[1:])]
        # A stream that never goes on is silent until its planned end.
        silent.append(start + self.frames * round(PERIOD * 1e9) - arrived[-1])
        lost = self.frames - len(sequences)
        expect(lost > 0 or self.listener.returncode == 0, f"the listener ended with {self.listener.returncode}: {said['listener']}")
        return lost, max(silent) / 1e9


class Faults:
    """Each public method is one fault."""

    def __init__(self, ktsn, programs, listener):
        self.ktsn, self.cluster, self.programs, self.listener = ktsn, ktsn.cluster, programs, listener
        self.rebooted = None

    # Helpers.

    def ready(self, names, seconds=60):
        """Until these pods are Ready; the pods."""
        def found():
            pods = [self.cluster.get("pod", name, missing_ok=True) for name in names]
            return pods if all(condition(pod, "Ready") for pod in pods) else None
        return until(found, seconds, lambda: f"{names} Ready: " + self.cluster.kubectl("get", "events")[-1500:], 0.3)

    def gone(self, *names, seconds=40):
        """Deletes pods and waits until the API has forgotten them."""
        self.cluster.kubectl("delete", "pod", *names, "--wait=true", f"--timeout={seconds}s", "--ignore-not-found", seconds=seconds + 20)

    def event(self, name, *words, seconds=30):
        """Until an event about this pod says all of these words; its message."""
        def said():
            events = self.cluster.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
            return next((e["message"] for e in events if all(word in e["message"] for word in words)), None)
        return until(said, seconds, lambda: f"event of {name} with {words}; there are: " + self.cluster.kubectl(
            "get", "events", "--field-selector", f"involvedObject.name={name}")[-1500:], 0.5)

    def leavings(self, node):
        """Everything on a node that a TSN pod brings along: what is more afterwards has leaked."""
        run = node.space.run
        links = json.loads(run("ip", "-json", "link"))
        programs = [found.get("name") for found in json.loads(run("bpftool", "-j", "prog", "show"))]  # the machine's, all of them
        count = lambda command: int(run("sh", "-c", f"({command}) 2>/dev/null | wc -l"))  # noqa: E731
        status = self.ktsn.attachments(node, self.programs)
        return {"namespaces": count("ls /run/netns"), "links": len(links), "routes": count("ip route; ip -6 route"),
                "state files": count("find /var/lib/cni/ktsn -name '*.json'"),
                "addresses": count("find /var/lib/cni/networks -name '[0-9f]*:*' -o -name '1*'"),
                "attachments": len(status["attachments"]), "bpf programs": sum(name in PROGRAMS for name in programs)}

    def same(self, node, before, seconds=30):
        """Until nothing is left beyond what was there."""
        left = {}

        def clean():
            left.clear()
            left.update({key: (before[key], now) for key, now in self.leavings(node).items() if now > before[key]})
            return not left
        until(clean, seconds, lambda: f"left on {node.name}: {left}", 0.5)

    def traffic(self, seconds=1.0):
        """Timed frames flow from end to end without a loss."""
        lost, gap = Stream(self.cluster, seconds).end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.3f} s")

    # Faults.

    def daemon_killed(self):
        """ktsnd killed: traffic resumes within a second, and no pod is restarted."""
        before = self.ktsn.restarts()
        stream = Stream(self.cluster, 4)
        time.sleep(1)
        kill(self.ktsn.daemon(self.cluster.nodes[0]))
        lost, gap = stream.end()
        print(f"       longest gap {gap:.3f} s, {lost} of {stream.frames} frames lost", flush=True)
        expect(gap <= 1.0, f"traffic stood still for {gap:.2f} s")
        expect(lost * PERIOD <= 1.0, f"{lost} frames lost: more than a second of them")
        expect(self.ktsn.restarts() == before, f"restarted: {set(self.ktsn.restarts().items()) - set(before.items())}")
        self.ktsn.wait_ready()
        return gap

    def agent_restarted(self):
        """Node agent killed: traffic does not notice, and a new pod gets its interface afterwards."""
        node = self.cluster.nodes[0]
        stream = Stream(self.cluster, 3)
        kill(self.ktsn.processes(node, "ktsn-node-agent")[0])
        lost, gap = stream.end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.2f} s")
        self.ktsn.wait_ready()
        self.cluster.apply(workload("after-agent", node.name))
        self.ready(["after-agent"])
        self.gone("after-agent")

    def kubelet_restarted(self):
        """Kubelet stopped and started: traffic does not notice, the resource comes back."""
        node = self.cluster.nodes[0]
        stream = Stream(self.cluster, 3)
        node.kubelet().stop()
        node.start_kubelet()
        lost, gap = stream.end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.2f} s")
        until(lambda: int(self.cluster.get("node", node.name)["status"]["allocatable"].get("ktsn.io/tsn", 0)) > 0, 30,
              "ktsn.io/tsn is allocatable again")
        self.cluster.apply(workload("after-kubelet", node.name))
        self.ready(["after-kubelet"], 90)
        self.gone("after-kubelet")

    def deleted_without_daemon(self):
        """A pod deleted while no part of KTSN runs on its node: it goes, and nothing of it comes back with the daemon."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        self.cluster.apply(workload("orphan", node.name))
        self.ready(["orphan"])
        nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"ktsn-e2e": "nowhere"}}}}}
        self.patch_daemons(nowhere)
        try:
            until(lambda: not self.ktsn.pods(), 60, "the DaemonSet's pods are gone")
            self.gone("orphan")
        finally:
            nowhere["spec"]["template"]["spec"]["nodeSelector"]["ktsn-e2e"] = None
            self.patch_daemons(nowhere)
        self.ktsn.wait_ready()
        self.same(node, before)
        self.traffic()

    def patch_daemons(self, patch):
        self.cluster.kubectl("patch", "daemonset", "ktsn-node", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))

    def node_rebooted(self):
        """The receiving node loses power: workloads come back with their interfaces, and nothing of the old pods stays.

        Kubelet refuses pods that had devices for as long as no plugin has registered again; what owns them makes new ones.
        """
        node = self.cluster.nodes[1]
        self.cluster.apply(deployment("reborn", node.name))
        self.reborn(60)
        before = self.leavings(node)
        node.reboot()
        self.cluster.wait_nodes(90)
        self.ktsn.wait_ready(120)
        self.reborn(120)
        if self.cluster.get("pod", "listener")["status"]["phase"] == "Failed":  # bare: nobody else makes it anew
            self.gone("listener")
            self.cluster.apply(self.listener())
        self.ready(["listener"], 120)
        self.cluster.kubectl("delete", "pods", "-l", "app=reborn", "--field-selector=status.phase=Failed")
        self.traffic()
        self.rebooted = (node, before)

    def rebooted_forgotten(self):
        """Nothing of the pods that the rebooted node lost is left: kubelet has told the plugins by now (once a minute)."""
        node, before = self.rebooted
        self.same(node, before, 90)
        self.cluster.kubectl("delete", "deployment", "reborn", "--cascade=foreground", "--timeout=60s", seconds=80)

    def reborn(self, seconds):
        """Until the deployment has a Ready pod with an address on the TSN network."""
        def up():
            pods = self.cluster.get("pods", "-l", "app=reborn")["items"]
            return any(condition(pod, "Ready") and addresses(pod).get("net1") for pod in pods)
        until(up, seconds, lambda: "reborn: " + self.cluster.kubectl("get", "pods,events")[-2500:], 0.5)

    def many_at_once(self, count=50):
        """Pods created and deleted at once: nothing is left of them."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        names = [f"crowd-{index}" for index in range(count)]
        began = time.monotonic()
        self.cluster.apply(*(workload(name, node.name) for name in names))

        def up():
            pods = self.cluster.get("pods", "-l", "test=e2e")["items"]
            return sum(condition(pod, "Ready") for pod in pods if pod["metadata"]["name"] in names) == count
        until(up, 150, lambda: "all Ready: " + self.cluster.kubectl("get", "pods")[-2500:], 1)
        ready = time.monotonic() - began
        expect(len({json.dumps(addresses(pod).get("net1")) for pod in self.cluster.get("pods", "-l", "test=e2e")["items"]
                    if pod["metadata"]["name"] in names}) == count, "two pods share an address")
        self.gone(*names, seconds=120)
        self.same(node, before, 60)
        print(f"       {count} pods Ready after {ready:.1f} s, gone after {time.monotonic() - began - ready:.1f} s", flush=True)

    def addresses_spent(self):
        """IPAM without an address left: the pod waits, the event says why, and it can be deleted."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        one = {"type": "host-local", "ranges": [[{"subnet": "10.97.0.0/30"}]]}  # one address beside the gateway's
        self.cluster.apply(network("scarce", ipam=one))
        self.cluster.apply(workload("first", node.name, "scarce"))
        self.ready(["first"])
        self.cluster.apply(workload("second", node.name, "scarce"))
        message = self.event("second", "no IP addresses available")
        expect("scarce" in message or "host-local" in message, message)
        self.gone("second", "first")
        self.same(node, before)

    def wrong_definition(self):
        """A field that does not exist, and one of a wrong kind: the event names it."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        for field, value in (("overlaye", {}), ("classes", "six"), ("late", "sometimes")):
            self.cluster.apply(network("wrong", **{field: value}))
            self.cluster.apply(workload("wrong", node.name, "wrong"))
            self.event("wrong", field)
            self.gone("wrong")
        self.cluster.apply(workload("nowhere", node.name, "no-such-network"))
        self.event("nowhere", "no-such-network")
        self.gone("nowhere")
        self.same(node, before)

    def policy_selects(self):
        """An egress NetworkPolicy selects the pod: it is refused, and the event says by which; the opt-in lets it through."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny-out"},
                  "spec": {"podSelector": {"matchLabels": {"guarded": "yes"}}, "policyTypes": ["Egress"]}}
        self.cluster.apply(policy, network("opted", allow_policy_bypass=True))
        for name, networks in (("guarded", "tsn"), ("opted", "opted")):
            pod = workload(name, node.name, networks)
            pod["metadata"]["labels"]["guarded"] = "yes"
            self.cluster.apply(pod)
        self.event("guarded", "deny-out")
        self.ready(["opted"])
        self.gone("guarded", "opted")
        self.cluster.kubectl("delete", "networkpolicy", "deny-out")
        self.same(node, before)

    def forwarding_denied(self):
        """Nodes that forward nothing by default (FORWARD policy DROP, as Docker sets it): the agent lets the TSN network through."""
        for node in self.cluster.nodes:
            node.space.run("iptables", "-P", "FORWARD", "DROP")
        try:
            for node in self.cluster.nodes:
                until(lambda: "-j KTSN-FORWARD" in node.space.run("iptables", "-S", "FORWARD"), 60, f"accept rules on {node.name}", 0.5)
            self.traffic()
        finally:
            for node in self.cluster.nodes:
                node.space.run("iptables", "-P", "FORWARD", "ACCEPT")

    def agent_confined(self):
        """The agent of one node, its token stolen: it changes neither another node nor anything but its own annotations."""
        near, far = (node.name for node in self.cluster.nodes)
        pod = self.ktsn.pods()[near]["metadata"]["name"]
        token = self.cluster.kubectl("create", "token", "ktsn-node-agent", "-n", NAMESPACE, "--bound-object-kind=Pod",
                                     f"--bound-object-name={pod}").strip()
        thief = ("--kubeconfig=/dev/null", f"--server=https://{self.cluster.control_address}:6443", f"--token={token}",
                 f"--certificate-authority={self.cluster.directory}/pki/ca.crt")

        def tries(node, verb, change):
            return self.cluster.control.run("kubectl", *thief, verb, "node", node, change, "--overwrite", check=False, network_only=True)
        for node, change, word in ((far, ("annotate", "ktsn.io/schedule-status=stolen"), "own node"),
                                   (near, ("label", "stolen=yes"), "annotations"),
                                   (near, ("annotate", "ktsn.io/tsn-prefixes=10.99.0.0/16"), "annotations")):
            done = tries(node, *change)
            expect(done.returncode != 0 and word in done.stderr, f"{change} on {node}: {done.returncode} {done.stderr}")
        done = tries(near, "annotate", "ktsn.io/schedule-status=own")
        expect(done.returncode == 0, done.stderr)
        self.cluster.kubectl("annotate", "node", near, "ktsn.io/schedule-status-")

    def capacity_exceeded(self):
        """More devices asked for than any node has: Pending, and the scheduler says which resource is short."""
        self.cluster.apply(workload("greedy", resource=100_000))
        message = self.event("greedy", "Insufficient ktsn.io/tsn")
        expect(self.cluster.get("pod", "greedy")["status"]["phase"] == "Pending", message)
        self.gone("greedy")
