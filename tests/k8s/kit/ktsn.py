# SPDX-License-Identifier: Apache-2.0
"""KTSN in the cluster, once `ktsn k8s` has installed it (lifecycle.py).

In: a cluster with KTSN. Out: what one can ask of DaemonSet and controller from outside, and objects that use them.
"""

import json
import os
import pathlib

from . import build
from .cluster import condition
from .space import Failed, until

SAMPLES = build.REPOSITORY / "k8s/deploy/samples"
NAMESPACE = "kube-system"
HOST = "kubernetes.io/hostname"
# Process 1 ends on SIGTERM only if it asks for it; kubelet would wait two seconds for each pod.
ENDLESS = "trap exit TERM; sleep 2147483647 & wait"


class Ktsn:
    """What is installed."""

    def __init__(self, cluster):
        self.cluster = cluster

    def pods(self, component="node"):
        """{node: pod} of a component; of two on a node, the one that is Ready and does not end."""
        found = self.cluster.api.list("Pod", NAMESPACE, f"app.kubernetes.io/component={component}")
        found.sort(key=lambda pod: ("deletionTimestamp" not in pod["metadata"], bool(condition(pod, "Ready"))))
        return {pod["spec"].get("nodeName"): pod for pod in found}

    def wait_ready(self, seconds=90):
        def ready():
            parts = self.pods(), self.pods("daemon")
            nodes = all(node.name in pods and condition(pods[node.name], "Ready") for pods in parts for node in self.cluster.nodes)
            return nodes and any(condition(pod, "Ready") for pod in self.pods("controller").values())
        until(ready, seconds, lambda: "KTSN ready on both nodes: " + self.why())

    def why(self):
        """What the parts say, for an error."""
        told = []
        pods = [(name, pod, container) for component, container in (("daemon", "ktsnd"), ("node", "agent"))
                for name, pod in self.pods(component).items()]
        for name, pod, container in pods:
            words = ("logs", "-n", NAMESPACE, pod["metadata"]["name"], "-c", container, "--tail=6")
            for which in ((), ("--previous",)):
                log = self.cluster.kubectl(*words, *which, check=False)
                told.append(f"{name} {container} {' '.join(which)}: {log.stdout}{log.stderr}")
            states = [status.get("state") for status in pod.get("status", {}).get("containerStatuses", [])]
            told.append(f"{name}: {json.dumps(states)}")
        events = self.cluster.kubectl("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp", check=False).stdout
        return "\n".join([*told, *events.splitlines()[-12:]])

    def processes(self, node, name, pod=None):
        """Process numbers, seen from outside, of a program in the node's pods, or in one of them."""
        place = f"/pod{pod['metadata']['uid']}/" if pod else "/kubepods"
        found = []
        for directory in pathlib.Path("/proc").iterdir():
            try:
                if directory.name.isdigit() and (directory / "comm").read_text().strip() == name \
                        and any(node.cgroup in line and place in line for line in (directory / "cgroup").read_text().splitlines()):
                    found.append(int(directory.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def daemon(self, node):
        """The process number of a node's ktsnd."""
        return until(lambda: self.processes(node, "ktsnd"), 20, f"ktsnd on {node.name}", 0.02)[0]

    def run_dir(self, node):
        """ktsnd's run directory, seen from outside."""
        return pathlib.Path(f"/proc/{node.space.pid}/root/run/ktsn")

    def attachments(self, node, programs):
        """What ktsnd says it serves."""
        text = node.space.run(programs / "ktsn", "status", "--run-dir", "/run/ktsn", "--json")
        return json.loads(text)

    def controllers(self):
        """The metrics of all controllers, as Prometheus reads them."""
        pods = self.cluster.api.list("Pod", NAMESPACE, "app.kubernetes.io/component=controller")
        return [self.cluster.api.text(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:9189/proxy/metrics") for pod in pods]

    def restarts(self):
        """How often any container of any pod in the default namespace and of ours was started again."""
        items = self.cluster.api.list("Pod", None)
        return {(pod["metadata"]["name"], status["name"]): status["restartCount"]
                for pod in items for status in pod.get("status", {}).get("containerStatuses", [])}

    def allow_real_time(self, node, pod, container, microseconds):
        """Lets one container run SCHED_FIFO threads, where the kernel gives real time to groups (RT_GROUP_SCHED).

        A parent's share is written before its child's, which is taken out of it.
        """
        root = pathlib.Path("/sys/fs/cgroup/cpu")
        if not (root / "cpu.rt_runtime_us").exists():
            return
        uid, quality = pod["metadata"]["uid"], pod["status"]["qosClass"].lower()
        statuses = pod["status"]["containerStatuses"]
        identity = next(s["containerID"] for s in statuses if s["name"] == container).split("//")[1]
        way = [root / self.cluster.name, root / node.cgroup, root / node.cgroup / "kubepods",
               root / node.cgroup / "kubepods" / quality, root / node.cgroup / "kubepods" / quality / f"pod{uid}"]
        way.append(way[-1] / identity)
        for directory, share in zip(way, (900_000, 440_000, 430_000, {"besteffort": 250_000}.get(quality, 170_000),
                                          microseconds + 5_000, microseconds)):
            file = directory / "cpu.rt_runtime_us"
            if int(file.read_text()) < share:
                file.write_text(str(share))


def is_real_time(pid):
    """Whether a thread of this process is SCHED_FIFO."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "stat").read_text().rsplit(")", 1)[1].split()[38] == "1":  # field 41, policy
            return True
    return False


def network(name="tsn", **fields):
    """A NetworkAttachmentDefinition: the sample, with other fields where a test asks for them."""
    config = {"cniVersion": "1.0.0", "name": name, "type": "tsn-cni", "ipam": {"type": "host-local"}} | fields
    return {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/resourceName": "ktsn.io/tsn"}},
            "spec": {"config": json.dumps(config)}}


def workload(name, node=None, networks="tsn", resource=1, host_network=False, rights=(), **spec):
    """A pod of the workload image that waits for a command to run."""
    user = {"runAsUser": 0} if rights else {}
    container = {"name": "main", "image": "localhost/ktsn-workload:dev", "imagePullPolicy": "Never",
                 "command": ["/bin/busybox", "sh", "-c", ENDLESS],
                 "volumeMounts": [{"name": "out", "mountPath": "/out"}],
                 "securityContext": user | {"capabilities": {"drop": ["ALL"], "add": list(rights)}}}
    if resource:
        container["resources"] = {"limits": {"ktsn.io/tsn": resource}}
    annotations = {"k8s.v1.cni.cncf.io/networks": networks} if networks else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations, "labels": {"test": "e2e"}},
            "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "enableServiceLinks": False,
                     "hostNetwork": host_network, "containers": [container],
                     "volumes": [{"name": "out", "emptyDir": {}}]} | ({"nodeSelector": {HOST: node}} if node else {}) | spec}


def deployment(name, node):
    """One such pod that is made again when it is lost."""
    pod = workload(name, node)
    pod["metadata"]["labels"] = {"test": "e2e", "app": name}
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}},
                     "template": {"metadata": {k: pod["metadata"][k] for k in ("annotations", "labels")}, "spec": pod["spec"]}}}


def addresses(pod):
    """{interface: address} as the network-status annotation tells."""
    told = json.loads(pod["metadata"]["annotations"].get("k8s.v1.cni.cncf.io/network-status", "[]"))
    return {status["interface"]: status["ips"][0] for status in told if status["ips"]}


def outside(node, pod):
    """The pod's directory /out, seen from outside."""
    return node.directory / "kubelet/pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/out"


def kill(pid):
    os.kill(pid, 9)
