# SPDX-License-Identifier: Apache-2.0
"""The paper's experiment inside the cluster.

In: a cluster with KTSN. Out: out/e2e/k8s.json and records/ by `ktsn bench cluster`, which measures; here are only its pods. One
pod on each node has both networks, so Flannel's path and tsn-cni's begin and end in the same processes' places; another
pair is on the nodes' own network. None knows anything of ktsnd.
"""

import json
import subprocess

from .cluster import condition
from .ktsn import addresses, is_real_time, kill, network, outside, workload
from .node import UPLINK
from .space import Failed, until

RIGHTS = ("SYS_NICE", "IPC_LOCK")
FLANNEL_PORT, TSN_PORT = 8472, 4789
# Shares of each second for SCHED_FIFO: a talker that spins takes 90 ms of it.
TALKER_SHARE, DAEMON_SHARE = 115_000, 160_000


class Experiment:
    """Its pods and its site."""

    def __init__(self, ktsn, programs, out):
        self.ktsn, self.cluster, self.programs, self.out = ktsn, ktsn.cluster, programs, out
        self.pods = {}

    def prepare(self):
        """Network and pods."""
        sender = self.cluster.nodes[0]
        self.ktsn.allow_real_time(sender, self.ktsn.pods("daemon")[sender.name], "ktsnd", DAEMON_SHARE)
        # As on the other paths: a late frame is sent and counted, however long a busy machine kept its talker waiting.
        self.cluster.api.apply(network(late="send", overrun_limit="5s"))
        near, far = self.cluster.nodes
        self.cluster.api.apply(
            workload("talker", near.name, rights=RIGHTS), self.listener(),
            workload("host-talker", near.name, None, 0, True, RIGHTS), workload("host-listener", far.name, None, 0, True, RIGHTS))
        names = ("talker", "listener", "host-talker", "host-listener")

        def ready():
            self.pods = {name: self.cluster.api.get("Pod", name) for name in names}
            return all(condition(pod, "Ready") for pod in self.pods.values())

        until(ready, 60, lambda: self.cluster.kubectl("describe", "pods")[-3000:])
        for name, pod in self.pods.items():
            self.ktsn.allow_real_time(far if "listener" in name else near, pod, "main", TALKER_SHARE)
        if not is_real_time(self.ktsn.daemon(near)):
            # It began before its control group had a share; it says so in its log. The next one gets it.
            kill(self.ktsn.daemon(near))
        until(lambda: is_real_time(self.ktsn.daemon(near)), 20, "ktsnd's worker is SCHED_FIFO", 0.2)

    def listener(self):
        return workload("listener", self.cluster.nodes[1].name, rights=RIGHTS)

    def end(self, name):
        """A pod, as `ktsn bench cluster` wants to know it."""
        node = self.cluster.nodes["listener" in name]
        return {"enter": [*self.cluster.kubectl_words(), "exec", name, "--"], "ktsn": "/usr/local/bin/ktsn", "inside": "/out",
                "outside": str(outside(node, self.pods[name]))}

    def site(self, chosen=None):
        near, far = self.cluster.nodes
        there = addresses(self.pods["listener"])

        def way(path, to, port, prefix=""):
            return {"path": path, "to": to, "vxlan_port": port, "talker": self.end(f"{prefix}talker"),
                    "listener": self.end(f"{prefix}listener")}

        ways = [way("flannel", there["eth0"], FLANNEL_PORT), way("flannel-spin", there["eth0"], FLANNEL_PORT),
                way("tsn-cni", there["net1"], TSN_PORT), way("host-network", far.address, 0, "host-")]
        return {"tap_enter": far.space.enter(network_only=True), "tap_device": UPLINK,
                "daemon_run_dir": str(self.ktsn.run_dir(near)), "daemon_pid": self.ktsn.daemon(near),
                "ways": [one for one in ways if chosen is None or one["path"] in chosen]}

    def measure(self, seconds, rounds, payloads=(64, 256, 1024), ways=None, judged=False):
        """Runs it; the document. Judged: a frame of tsn-cni lost, early, twice or out of order is an error, and nothing else is told."""
        file = self.out / "site.json"
        file.write_text(json.dumps(self.site(ways), indent=1))
        json_file = self.out / "k8s.json"
        environment = self.cluster.control.environment | {"HOME": str(self.cluster.directory)}
        done = subprocess.run([str(self.programs / "ktsn"), "bench", "cluster", "--site", str(file), "--seconds", str(seconds),
                               "--rounds", str(rounds), "--payload", ",".join(map(str, payloads)),
                               "--json", str(json_file), *([] if judged else ["--records"])],
                              env=environment, capture_output=True, text=True, check=False, timeout=290)
        (self.out / "bench.log").write_text(done.stdout + done.stderr)
        if not judged:
            print(done.stdout, flush=True)
        if not json_file.exists() or judged and done.returncode != 0:
            raise Failed(f"ktsn bench cluster: exit status {done.returncode}: {done.stderr.strip()[-1500:]}")
        return json.loads(json_file.read_text())
