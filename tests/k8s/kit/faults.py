# SPDX-License-Identifier: Apache-2.0
"""What breaks in a cluster, done on purpose.

In: a cluster with KTSN and the experiment's pods. Out: one case for each fault.
"""

import datetime
import json
import time

from .cases import PERIOD, Cases, Stream, expect
from .cluster import condition
from .ktsn import NAMESPACE, addresses, deployment, kill, network, workload
from .space import Failed, until

# A stream of so many seconds outlives the update of both nodes; at most so many seconds pass from one ktsnd to the next.
UPDATE_SECONDS, UPDATE_GAP_MAX = 45, 0.3
DAEMONS = ("ktsnd", "ktsn-node")


class Faults(Cases):
    """Each public method is one fault."""

    def __init__(self, ktsn, programs, listener):
        super().__init__(ktsn, programs, listener)
        self.rebooted = None

    def daemon_killed(self):
        """ktsnd killed: traffic resumes, within a second where times are judged, and no pod is restarted."""
        before = self.ktsn.restarts()
        stream = Stream(self.ktsn, 4)
        time.sleep(1)
        kill(self.ktsn.daemon(self.cluster.nodes[0]))
        lost, gap = stream.end()
        print(f"       longest gap {gap:.3f} s, {lost} of {stream.frames} frames lost", flush=True)
        if self.judges_times:
            expect(gap <= 1, f"traffic stood still for {gap:.2f} s")
            expect(lost * PERIOD <= 1, f"{lost} frames lost: more than a second of them")
        # A pod of a case before may go meanwhile.
        restarted = set(self.ktsn.restarts().items()) - set(before.items())
        expect(not restarted, f"restarted: {restarted}")
        self.ktsn.wait_ready()
        lost, _ = Stream(self.ktsn, 1).end()
        expect(lost == 0, f"{lost} frames lost after ktsnd was ready again")
        return gap

    def rolling_update(self):
        """A rolling update of both DaemonSets and its rollback under traffic: each lost frame is counted, none is early, no other pod is restarted."""
        before = self.users()
        for verb, words in (("update", ("restart",)), ("rollback", ("undo",))):
            self.renewed(verb, UPDATE_SECONDS, self.rolled, *words)
        expect(self.users() == before, f"pods or restarts changed: {set(self.users().items()) ^ set(before.items())}")
        self.traffic()

    def rolled(self, *words):
        """Both DaemonSets, by kubectl rollout."""
        self.cluster.kubectl("rollout", *words, "-n", NAMESPACE, *(f"daemonset/{name}" for name in DAEMONS))
        for name in DAEMONS:
            self.cluster.kubectl("rollout", "status", "-n", NAMESPACE, f"daemonset/{name}", "--timeout=60s", seconds=70)

    def renewed(self, verb, seconds, change, *arguments, twice=0):
        """Replaces ktsnd and agent of all nodes by `change`, under a stream of so many seconds: each lost frame is counted, none is early.

        `twice`: at most so many frames arrive and are counted all the same."""
        node = self.cluster.nodes[0]
        pods, absent = self.parts(node), self.absent(node)
        stream = Stream(self.ktsn, seconds)
        change(*arguments)
        expect(time.monotonic() < stream.planned, f"{verb}: it took longer than the stream of {seconds} s")
        lost, gap = stream.end()
        early = sum(int(row["received_at"]) < int(row["tx_time"]) for row in stream.rows)
        counted = self.absent(node) - absent
        print(f"       {verb}: longest gap {gap:.3f} s, {lost} of {stream.frames} frames lost, {counted} counted, {early} early", flush=True)
        expect(not pods & self.parts(node), f"{verb}: a pod on {node.name} is the one before")
        expect(early == 0, f"{verb}: {early} frames were early")
        expect(lost <= counted <= lost + twice, f"{verb}: {lost} frames lost, {counted} counted as daemon_absent; " + self.dropped())
        if self.judges_times:
            expect(gap <= UPDATE_GAP_MAX, f"{verb}: traffic stood still for {gap:.2f} s, at most {UPDATE_GAP_MAX}")

    def parts(self, node):
        """The pods of a node's ktsnd and agent."""
        return {self.ktsn.pods(component)[node.name]["metadata"]["uid"] for component in ("daemon", "node")}

    def users(self):
        """How often each container of a pod that is not KTSN's was started again, by the pod's UID."""
        pods = [pod for pod in self.cluster.api.list("Pod", None) if not pod["metadata"]["name"].startswith("ktsn")]
        return {(pod["metadata"]["uid"], status["name"]): status["restartCount"]
                for pod in pods for status in pod.get("status", {}).get("containerStatuses", [])}

    def absent(self, node):
        """Frames that a node's ktsnd counted as sent while it was away."""
        attached = self.ktsn.attachments(node, self.programs)["statistics"]["attachments"]
        return sum(int(one["dropped"].get("daemon_absent", 0)) for one in attached)

    def agent_restarted(self):
        """Node agent killed: traffic does not notice, and a new pod gets its interface afterwards."""
        node = self.cluster.nodes[0]
        stream = Stream(self.ktsn, 3)
        kill(self.ktsn.processes(node, "ktsn-node-agent")[0])
        lost, gap = stream.end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.2f} s")
        self.ktsn.wait_ready()
        self.cluster.api.apply(workload("after-agent", node.name))
        self.ready(["after-agent"])
        self.gone("after-agent")

    def kubelet_restarted(self):
        """Kubelet stopped and started: traffic does not notice, the resource comes back."""
        node = self.cluster.nodes[0]
        stream = Stream(self.ktsn, 3)
        node.kubelet().stop()
        begun = time.time()
        node.start_kubelet()
        lost, gap = stream.end()
        expect(lost == 0, f"{lost} frames lost, longest gap {gap:.2f} s")

        def allocatable():
            status = self.cluster.api.get("Node", node.name)["status"]
            heard = next(one["lastHeartbeatTime"] for one in status["conditions"] if one["type"] == "Ready")
            # What the last kubelet said does not count.
            return datetime.datetime.fromisoformat(heard).timestamp() > begun and int(status["allocatable"].get("ktsn.io/tsn", 0)) > 0
        until(allocatable, 30, "ktsn.io/tsn is allocatable again")
        self.cluster.api.apply(workload("after-kubelet", node.name))
        self.ready(["after-kubelet"], 90)
        expect(node.kubelet().alive(), f"the new one has ended: {node.kubelet().tail()}")
        self.gone("after-kubelet")

    def deleted_without_daemon(self):
        """A pod deleted while no part of KTSN runs on its node: it goes, nothing of it comes back, and the next pod clears up after it."""
        node = self.cluster.nodes[0]
        before = self.leavings(node)
        self.cluster.api.apply(workload("orphan", node.name))
        self.ready(["orphan"])
        nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"ktsn-e2e": "nowhere"}}}}}
        self.patch_daemons(nowhere)
        try:
            until(lambda: not self.ktsn.pods() and not self.ktsn.pods("daemon"), 60, "the DaemonSets' pods are gone")
            self.gone("orphan")
        finally:
            nowhere["spec"]["template"]["spec"]["nodeSelector"]["ktsn-e2e"] = None
            self.patch_daemons(nowhere)
        self.ktsn.wait_ready()
        self.cluster.api.apply(workload("next", node.name))
        self.ready(["next"])
        self.gone("next")
        self.same(node, before)
        self.traffic()

    def patch_daemons(self, patch):
        for name in DAEMONS:
            self.cluster.api.merge("DaemonSet", name, patch, NAMESPACE)

    def node_rebooted(self):
        """The receiving node loses power: workloads come back with their interfaces, and nothing of the old pods stays.

        Kubelet refuses pods that had devices for as long as no plugin has registered again; what owns them makes new ones.
        """
        node = self.cluster.nodes[1]
        self.cluster.api.apply(deployment("reborn", node.name))
        self.reborn(60)
        before, lost = self.leavings(node), self.containers(node)
        node.reboot()
        # Until kubelet is up again the API says what was before.
        until(lambda: not self.containers(node) & lost, 90, lambda: f"kubelet of {node.name} tells of its pods: {node.kubelet().tail()}")
        self.cluster.wait_nodes(90)
        self.ktsn.wait_ready(120)
        self.reborn(120)
        if self.cluster.api.get("Pod", "listener")["status"]["phase"] == "Failed":  # bare: no controller makes it again
            self.gone("listener")
            self.cluster.api.apply(self.listener())
        self.ready(["listener"], 120)
        self.cluster.kubectl("delete", "pods", "-l", "app=reborn", "--field-selector=status.phase=Failed")
        self.traffic()
        self.rebooted = (node, before)

    def containers(self, node):
        """The containers that the API believes to run on a node."""
        return {status["containerID"] for pod in self.cluster.api.list("Pod", None, fields=f"spec.nodeName={node.name}")
                if pod["status"]["phase"] == "Running" for status in pod["status"].get("containerStatuses", []) if "running" in status.get("state", {})}

    def rebooted_forgotten(self):
        """Nothing of the pods that the rebooted node lost is left: kubelet has told the plugins by now (once a minute)."""
        expect(self.rebooted, "node_rebooted was not run, or failed")
        node, before = self.rebooted
        self.same(node, before, 90)
        self.cluster.api.delete("Deployment", "reborn", seconds=60)

    def reborn(self, seconds):
        """Until the deployment has a Ready pod with an address on the TSN network."""
        def up():
            pods = self.cluster.api.list("Pod", labels="app=reborn")
            return any(condition(pod, "Ready") and addresses(pod).get("net1") for pod in pods)
        until(up, seconds, lambda: "reborn: " + self.cluster.kubectl("get", "pods,events")[-2500:])

    def many_at_once(self, count=50):
        """Pods created and deleted at once: nothing is left of them."""
        node = self.cluster.nodes[0]
        names = [f"crowd-{index}" for index in range(count)]
        began = time.monotonic()
        self.cluster.api.apply(*(workload(name, node.name) for name in names))

        def up():
            pods = self.cluster.api.list("Pod", labels="test=e2e")
            return sum(condition(pod, "Ready") for pod in pods if pod["metadata"]["name"] in names) == count
        until(up, 150, lambda: "all Ready: " + self.cluster.kubectl("get", "pods")[-2500:], 0.3)
        ready = time.monotonic() - began
        expect(len({json.dumps(addresses(pod).get("net1")) for pod in self.cluster.api.list("Pod", labels="test=e2e")
                    if pod["metadata"]["name"] in names}) == count, "two pods share an address")
        self.gone(*names, seconds=120)
        print(f"       {count} pods Ready after {ready:.1f} s, gone after {time.monotonic() - began - ready:.1f} s", flush=True)

    def addresses_spent(self):
        """IPAM without an address left: the pod waits, the event says why, and it can be deleted."""
        node = self.cluster.nodes[0]
        one = {"type": "host-local", "ranges": [[{"subnet": "10.97.0.0/30"}]]}  # one address beside the gateway's
        self.cluster.api.apply(network("scarce", ipam=one))
        self.cluster.api.apply(workload("first", node.name, "scarce"))
        self.ready(["first"])
        self.cluster.api.apply(workload("second", node.name, "scarce"))
        message = self.event("second", "no IP addresses available")
        expect("scarce" in message or "host-local" in message, message)
        self.gone("second", "first")

    def wrong_definition(self):
        """A field that does not exist, and one of a wrong kind: the event names it."""
        node = self.cluster.nodes[0]
        for field, value in (("overlaye", {}), ("classes", "six"), ("late", "sometimes")):
            self.cluster.api.apply(network("wrong", **{field: value}))
            self.cluster.api.apply(workload("wrong", node.name, "wrong"))
            self.event("wrong", field)
            self.gone("wrong")
        self.cluster.api.apply(workload("nowhere", node.name, "no-such-network"))
        self.event("nowhere", "no-such-network")
        self.gone("nowhere")

    def policy_selects(self):
        """An egress NetworkPolicy selects the pod: it is refused, and the event says by which; the opt-in lets it through."""
        node = self.cluster.nodes[0]
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny-out"},
                  "spec": {"podSelector": {"matchLabels": {"guarded": "yes"}}, "policyTypes": ["Egress"]}}
        self.cluster.api.apply(policy, network("opted", allow_policy_bypass=True))
        for name, networks in (("guarded", "tsn"), ("opted", "opted")):
            pod = workload(name, node.name, networks)
            pod["metadata"]["labels"]["guarded"] = "yes"
            self.cluster.api.apply(pod)
        self.event("guarded", "deny-out")
        self.ready(["opted"])
        self.gone("guarded", "opted")
        self.cluster.api.delete("NetworkPolicy", "deny-out")

    def forwarding_denied(self):
        """Nodes that forward nothing by default (FORWARD policy DROP, as Docker sets it): the agent lets the TSN network through."""
        for node in self.cluster.nodes:
            node.space.run("iptables", "-P", "FORWARD", "DROP")
        try:
            for node in self.cluster.nodes:
                until(lambda: "-j KTSN-FORWARD" in node.space.run("iptables", "-S", "FORWARD"), 60, f"accept rules on {node.name}", 0.5)
            self.traffic()
        except Failed as fault:
            seen = "\n".join(node.space.run("iptables", "-L", "-v", "-n") for node in self.cluster.nodes)
            raise Failed(f"{fault}; {self.dropped()}\n{seen}") from fault
        finally:
            for node in self.cluster.nodes:
                node.space.run("iptables", "-P", "FORWARD", "ACCEPT")

    def agent_confined(self):
        """The agent of one node, its token stolen: it changes no other node, nothing but its own annotations, and no status."""
        near, far = (node.name for node in self.cluster.nodes)
        pod = self.ktsn.pods()[near]["metadata"]["name"]
        token = self.cluster.kubectl("create", "token", "ktsn-node-agent", "-n", NAMESPACE, "--bound-object-kind=Pod",
                                     f"--bound-object-name={pod}").strip()
        thief = ("--kubeconfig=/dev/null", f"--server=https://{self.cluster.control_address}:6443", f"--token={token}",
                 f"--certificate-authority={self.cluster.directory}/pki/ca.crt")

        def tries(node, verb, *change):
            return self.cluster.control.run("kubectl", *thief, verb, "node", node, *change, check=False, network_only=True)
        owner = json.dumps({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "absent", "uid": "absent"}]}})
        finalizer = json.dumps({"metadata": {"finalizers": ["example.org/stolen"]}})
        for node, change, word in ((far, ("annotate", "ktsn.io/schedule-status=stolen", "--overwrite"), "own node"),
                                   (near, ("label", "stolen=yes", "--overwrite"), "annotations"),
                                   (near, ("patch", "--type=merge", "--patch", owner), "annotations"),
                                   (near, ("patch", "--type=merge", "--patch", finalizer), "annotations"),
                                   (near, ("annotate", "ktsn.io/tsn-prefixes=10.99.0.0/16", "--overwrite"), "annotations")):
            done = tries(node, *change)
            expect(done.returncode != 0 and word in done.stderr, f"{change} on {node}: {done.returncode} {done.stderr}")
        for kind, path in (("streams", "namespaces/default/streams"), ("gateschedules", "gateschedules")):
            done = self.cluster.control.run("kubectl", *thief, "replace", "--raw", f"/apis/ktsn.io/v1alpha1/{path}/any/status", "-f", "-",
                                            check=False, network_only=True, input="{}")
            expect(done.returncode != 0 and f'cannot update resource "{kind}/status"' in done.stderr, f"{kind}: {done.returncode} {done.stderr}")
        done = tries(near, "annotate", "ktsn.io/schedule-status=own", "--overwrite")
        expect(done.returncode == 0, done.stderr)
        self.cluster.api.annotate("Node", near, {"ktsn.io/schedule-status": None})

    def capacity_exceeded(self):
        """More devices asked for than any node has: Pending, and the scheduler says which resource is short."""
        self.cluster.api.apply(workload("greedy", resource=100_000))
        message = self.event("greedy", "Insufficient ktsn.io/tsn")
        expect(self.cluster.api.get("Pod", "greedy")["status"]["phase"] == "Pending", message)
        self.gone("greedy")
