# SPDX-License-Identifier: Apache-2.0
"""`ktsn k8s` in the cluster: from nothing to a passed connectivity test, and back to nothing.

In: a cluster with the images, the built ktsn. Out: checks. What the test adds to a user's command is said here: the worker's CPU (a
machine with two has to share them), and a range of IPv6 beside that of IPv4.
"""

import json
import pathlib
import re
import shlex
import subprocess
import time

from . import build
from .cases import expect
from .images import reference
from .ktsn import NAMESPACE
from .space import Failed, until

PAGE = build.REPOSITORY / "docs/first-pod.md"
TUTORIAL_MIN = 1000
RANGES = "10.99.0.0/16,fd99::/48"
VALUES = """\
ktsnd:
  config: |
    [[port]]
    device = "eth0"
    cpu = 1
    priority = 50
agent: {rtCheck: {enabled: true, duration: 3s}}
"""
RT_CHECK, RT_VERDICT = "ktsn.io/rt-check", "ktsn.io/rt-verdict"
RT_SHARE = 50_000  # of each second, for the probe of a real-time check
INSTALLED_MAX = 90  # seconds from `ktsn k8s install` to a passed connectivity test
# Everything on a node that is called after KTSN: files (but not the images, the logs and the pods of the runtime), devices, rules.
LOOK = r"""
find /run /var /opt /etc -xdev \( -path /var/lib/kubelet/pods -o -path /var/log -o -path '*/containerd' \) -prune -o -name '*ktsn*' -print -o -name '*tsn-cni*' -print
find /var/lib/kubelet/device-plugins -name '*ktsn*'
ip -o link | grep -o 'ktsn[^:@]*'
for f in iptables iptables-legacy ip6tables ip6tables-legacy; do $f-save 2>/dev/null | grep -i ktsn; done
true
"""


class Lifecycle:
    """The commands of docs/guide/kubernetes.md."""

    def __init__(self, deployed, programs, judges_times):
        self.deployed, self.cluster, self.programs, self.judges_times = deployed, deployed.cluster, programs, judges_times
        self.begun = None
        self.before = {node.name: self.named(node) for node in self.cluster.nodes}

    def ktsn(self, *words, check=True, seconds=300, programs=None):
        """(exit status, standard output and error) of `ktsn k8s`, of these programs or of those that were built."""
        argv = [*self.cluster.control.enter(network_only=True), str((programs or self.programs) / "ktsn"), "k8s", *words,
                "--kubeconfig", str(self.cluster.directory / "pki/admin.conf")]
        environment = self.cluster.control.environment | {"HOME": str(self.cluster.directory)}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=seconds)
        if check and done.returncode != 0:
            raise Failed(f"ktsn k8s {' '.join(words)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done.returncode, done.stdout + done.stderr

    def named(self, node):
        return set(node.space.run("sh", "-c", LOOK).split("\n"))

    def refused_first(self):
        """Nothing is changed where the range is taken, the context is wrong, or KTSN is not there yet."""
        for words, status, said in ((("install", "--cidr", "10.244.0.0/16"), 1, "the pod range of node"),
                                    (("install", "--cidr", "192.168.77.0/24"), 1, "an address of node"),
                                    (("install", "--tag", "nowhere", "--timeout", "20s"), 1, "does not have the image"),
                                    (("install", "--set", "agent.lok=debug"), 2, "agent.lok"),
                                    (("status", "--context", "nowhere"), 3, "the kubeconfig's contexts: "),
                                    (("status",), 1, "ktsn k8s install"), (("connectivity-test",), 1, "ktsn k8s install")):
            found, output = self.ktsn(*words, check=False)
            expect(found == status and said in output, f"{words}: exit status {found}: {output}")
        expect(not self.objects(), f"left: {self.objects()}")

    def installed(self, *words, programs=None):
        """What `ktsn k8s install` says, with the test's values; it ends when all nodes are ready."""
        (self.cluster.directory / "values.yaml").write_text(VALUES)
        _, output = self.ktsn("install", "--cidr", RANGES, "--values", str(self.cluster.directory / "values.yaml"), *words, programs=programs)
        print("".join(f"       {line}\n" for line in output.splitlines()), end="", flush=True)

    def install(self):
        """`ktsn k8s install`: all nodes are ready."""
        self.begun = time.monotonic()
        self.installed()
        _, output = self.ktsn("status", "--json")
        state, _ = json.JSONDecoder().raw_decode(output[output.index("{"):])
        expect(state["ready"] and all(node["slots"] > 0 and node["prefixes"] for node in state["nodes"]), output)

    def connectivity(self):
        """`ktsn k8s connectivity-test`: 10,000 timed datagrams from node to node, none lost, none early."""
        _, output = self.ktsn("connectivity-test")
        took = time.monotonic() - self.begun
        print("".join(f"       {line}\n" for line in output.splitlines()), end="", flush=True)
        print(f"       {took:.1f} s from `ktsn k8s install` to a passed connectivity test", flush=True)
        expect("passed: 10000 of 10000 datagrams" in output and "0 early" in output, output)
        # Of 10,000 frames one is handed over later than a clock can tell.
        expect(re.search(r"handed over after the transmit time .* max [1-9]", output), output)
        if self.judges_times:
            expect(took <= INSTALLED_MAX, f"{took:.1f} s, at most {INSTALLED_MAX}")
        left = self.cluster.kubectl("get", "namespaces", "-o", "name")
        expect("connectivity" not in left, left)

    def rt_check(self):
        """`kubectl annotate node node2 ktsn.io/rt-check=now`: a verdict for each service; another value is refused."""
        node, pod = self.cluster.nodes[1], self.deployed.pods()[self.cluster.nodes[1].name]
        self.deployed.allow_real_time(node, pod, "agent", RT_SHARE)
        answer = self.rt_answer(node.name, "now")
        expect("error" not in answer and answer["measured_ns"] >= 2_900_000_000 and 0 < answer["p99_9_ns"] <= answer["max_ns"], f"{answer}")
        services = {service["service"]: service["verdict"] for service in answer["services"]}
        # A run of seconds never says that a node is fit; the words are those of `ktsn doctor --wake-ups`.
        expect(len(services) == 8 and set(services.values()) <= {"PASS", "TIGHT", "FAIL"}, f"{answer}")
        print(f"       {answer}", flush=True)
        answer = self.rt_answer(node.name, "later")
        expect("ktsn.io/rt-check" in answer.get("error", "") and "services" not in answer, f"{answer}")

    def rt_answer(self, node, value):
        """What the node agent answers to one request, which it takes away."""
        self.cluster.kubectl("annotate", "node", node, f"{RT_CHECK}={value}")

        def annotations():
            return self.cluster.api.get("Node", node)["metadata"]["annotations"]

        until(lambda: RT_CHECK not in annotations(), 60, lambda: f"the agent has not answered: {annotations()}", 0.5)
        return json.loads(annotations()[RT_VERDICT])

    def tutorial(self):
        """The commands of docs/first-pod.md, as they stand there: the talker sends 5,000 datagrams, and the listener says what came."""
        page = PAGE.read_text().replace("REGISTRY/ktsn-workload:TAG", reference("workload"))
        folder = self.cluster.directory / "tutorial"
        folder.mkdir()
        files = re.findall(r"`(\w+\.yaml)`[^`]*?\n\n```yaml\n(.*?)```", page, re.S)
        expect([name for name, _ in files] == ["network.yaml", "listener.yaml", "talker.yaml"], f"the page has {[name for name, _ in files]}")
        for name, text in files:
            (folder / name).write_text(text)
        commands = [line for block in re.findall(r"```console\n(.*?)```", page, re.S) for line in re.findall(r"^\$ (.*)", block, re.M)]
        # What was done before: install, and connectivity-test.
        commands = [command for command in commands if not command.startswith("ktsn k8s ")]
        expect(len(commands) >= 11, f"the page has the commands {commands}")
        script = "kubectl() { %s \"$@\"; }\nset -ex\n%s\n" % (shlex.join(self.cluster.kubectl_words()), "\n".join(commands))
        environment = self.cluster.control.environment | {"HOME": str(self.cluster.directory)}
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=240, cwd=folder)
        received = [int(count) for count in re.findall(r"received (\d+) datagrams", done.stdout)]
        # A busy machine may wake the talker after a datagram's time: ktsnd drops that one.
        is_told = "sent 5000 of 5000 datagrams" in done.stdout and received and received[0] >= TUTORIAL_MIN
        expect(done.returncode == 0 and is_told, f"exit status {done.returncode}: {done.stdout}{done.stderr}")
        print("".join(f"       {line}\n" for line in done.stdout.splitlines()), end="", flush=True)

    def installed_again(self):
        """A second `ktsn k8s install` with another value changes that alone; ktsnd is not started again."""
        def generations():
            return self.cluster.kubectl("get", "daemonsets", "ktsnd", "ktsn-node", "-n", "kube-system", "-o", "jsonpath={.items[*].metadata.generation}")
        before = generations()
        self.ktsn("install", "--cidr", RANGES, "--values", str(self.cluster.directory / "values.yaml"), "--set", "controller.log=debug")
        expect(before == generations(), f"the DaemonSets' generations were {before} and are {generations()}")

    def wrong_update(self):
        """An update with a wrong configuration: the ktsnd before goes on serving, the error names the field, and the right values mend it."""
        serving = [self.deployed.daemon(node) for node in self.cluster.nodes]
        values = ("install", "--cidr", RANGES, "--values", str(self.cluster.directory / "values.yaml"))
        status, output = self.ktsn(*values, "--set", "ktsnd.config=[[port]]\nspeed = 9\n", "--timeout", "15s", check=False)
        expect(status == 1 and "speed" in output and "2 of 2 nodes ready" in output, f"exit status {status}: {output}")
        status, output = self.ktsn("status", check=False)
        expect(status == 1 and "nodes have this version of ktsnd" in output, f"exit status {status}: {output}")
        self.ktsn(*values)
        self.ktsn("status")
        now = [self.deployed.daemon(node) for node in self.cluster.nodes]
        expect(now == serving, f"ktsnd was process {serving} on the nodes and is {now}")
        # A pod has the right ConfigMap when kubelet looks at it next. A ktsnd that starts before that reads the wrong one, and ends.
        self.cluster.kubectl("annotate", "pods", "-n", NAMESPACE, "--all", "--overwrite", "ktsn-test=look")
        for pid in now:
            path = pathlib.Path(f"/proc/{pid}/root/etc/ktsn/ktsnd.toml")
            until(lambda path=path: "speed = 9" not in path.read_text(), 100, f"the right configuration in {path}")

    def uninstall_refused(self):
        """`ktsn k8s uninstall` while pods are attached: refused with their names, nothing is changed."""
        status, output = self.ktsn("uninstall", check=False)
        expect(status == 1 and "\n  default/talker on node1" in output and "--force" in output, f"exit status {status}: {output}")
        self.ktsn("status")

    def uninstall_forced(self):
        """`--force`: KTSN is gone, what its pods need to end stays, and they end."""
        status, output = self.ktsn("uninstall", "--force", check=False)
        expect(status == 1 and "interfaces of pods are attached" in output, f"exit status {status}: {output}")
        self.cluster.kubectl("delete", "pods,deployments", "--all", "--timeout=90s", seconds=120)
        self.cluster.kubectl("delete", "network-attachment-definitions", "--all")

    def uninstall(self):
        """`ktsn k8s uninstall --crds`: nothing is left, in the cluster or on its nodes; a second run finds nothing to do."""
        self.ktsn("uninstall", "--crds")
        expect(not self.objects(), f"objects: {self.objects()}")
        for node in self.cluster.api.list("Node"):
            left = [key for key in node["metadata"].get("annotations", {}) if key.startswith("ktsn.io/")]
            expect(not left, f"annotations of {node['metadata']['name']}: {left}")
        for node in self.cluster.nodes:
            until(lambda: self.named(node) <= self.before[node.name], 10,
                  lambda: f"left on {node.name}: {self.named(node) - self.before[node.name]}")
            programs = node.space.run("bpftool", "-j", "net")
            expect(not re.search(r'"name":"(ktsn|tsn)', programs), programs)
        self.ktsn("uninstall", "--crds")

    def objects(self):
        """Everything in the cluster that is KTSN's, by name."""
        kinds = "daemonsets,deployments,services,configmaps,roles,rolebindings,serviceaccounts,pods"
        of_cluster = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,crds,namespaces"
        found = self.cluster.kubectl("get", kinds, "-A", "-o", "name").split() + self.cluster.kubectl("get", of_cluster, "-o", "name").split()
        return [name for name in found if "ktsn" in name]
