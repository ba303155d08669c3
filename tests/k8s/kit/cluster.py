# SPDX-License-Identifier: Apache-2.0
"""The cluster: a control plane and two nodes.

In: programs and images. Out: a `Cluster` with both nodes Ready, and kubectl. Its name holds this process's number, so two
clusters never meet. It is gone with this process, whatever ends it: `guard` removes what the kernel does not.
It must never: touch an interface of this machine, or a process that it has not started.
"""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import pki
from .api import Api
from .node import POD_RANGE, SERVICE_RANGE, Node, remove_cgroups
from .space import Failed, Space, until

CONTROL_ADDRESS = "192.168.77.1"
ETCD = "http://127.0.0.1:2379"


def guard(name, directory):
    """Starts a process that waits for the end of this one, however it comes, and then removes cgroups and directory.

    It holds the reading end of a pipe whose writing end only this process has.
    """
    reading, writing = os.pipe()
    program = ("import os,sys; sys.path.insert(0, sys.argv[1]); from kit.cluster import clean; os.read(0, 1); "
               "clean(sys.argv[2], sys.argv[3])")
    subprocess.Popen([sys.executable, "-B", "-c", program, str(pathlib.Path(__file__).parent.parent), name, str(directory)],
                     stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(reading)
    return writing


def clean(name, directory):
    """Removes what outlives the machines; waits a while for the last processes to leave their cgroups."""
    left = []
    for _ in range(100):
        if not (left := remove_cgroups(name)):
            break
        time.sleep(0.1)
    shutil.rmtree(directory, ignore_errors=True)
    return left


class Cluster:
    """Control plane and nodes."""

    def __init__(self, path, keep_logs=None):
        self.path, self.keep_logs = path, keep_logs
        self.name = f"ktsn-e2e-{os.getpid()}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.guarded = guard(self.name, self.directory)
        self.control_address, self.nodes, self.control = CONTROL_ADDRESS, [], None
        self.api = Api(self.directory / "api.sock")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down()

    def up(self, images):
        """Everything started, both nodes Ready."""
        addresses = {f"node{index}": f"192.168.77.{10 + index}" for index in (1, 2)}
        pki.issue(self.directory / "pki", self.control_address, addresses, f"{self.path}:{os.environ['PATH']}")
        self.control = Space("control", "control", self.directory / "control", self.name, self.path)
        for line in ("link add switch type bridge", f"addr add {self.control_address}/24 dev switch", "link set switch up"):
            self.control.ip(line)
        # A switch asks no packet filter; Linux's bridge does unless that is switched off, and every path would be slower by it.
        for family in ("ip", "ip6", "arp"):
            self.control.run("sh", "-c", f"f=/proc/sys/net/bridge/bridge-nf-call-{family}tables; [ ! -e $f ] || echo 0 >$f")
        self._start_store()
        self.nodes = [Node(self, index) for index in (1, 2)]
        for node in self.nodes:
            node.start_runtime()
        # Daemons are started by this thread alone: with the thread that started them they would be killed.
        with concurrent.futures.ThreadPoolExecutor() as at_once:
            imports = [at_once.submit(node.import_images, images) for node in self.nodes]
            self._start_control_plane()
            self.kubectl("apply", "-f", pathlib.Path(__file__).parent.parent / "manifests/networks.yaml")
            for imported in imports:
                imported.result()
        for node in self.nodes:
            node.start_kubelet()
        for node in self.nodes:
            until(lambda: self.api.get("Node", node.name, missing_ok=True).get("spec", {}).get("podCIDR"), 30,
                  lambda: f"{node.name} has no range of pod addresses: {node.kubelet().tail()}")
            node.start_network()
            node.install_multinet()
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        self.wait_nodes()

    def _start_store(self, *flags):
        """etcd and the API server, with further flags of its own."""
        keys = self.directory / "pki"
        start = self.control.start
        start("etcd", "etcd", "--data-dir", self.directory / "etcd", "--listen-client-urls", ETCD, "--advertise-client-urls",
              ETCD, "--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync")
        start("apiserver", "kube-apiserver", f"--etcd-servers={ETCD}", f"--bind-address={self.control_address}",
              f"--advertise-address={self.control_address}", "--secure-port=6443",
              f"--service-cluster-ip-range={SERVICE_RANGE}", "--authorization-mode=Node,RBAC",
              "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
              f"--client-ca-file={keys}/ca.crt", f"--tls-cert-file={keys}/apiserver.crt",
              f"--tls-private-key-file={keys}/apiserver.key", f"--kubelet-certificate-authority={keys}/ca.crt",
              f"--kubelet-client-certificate={keys}/apiserver-kubelet.crt",
              f"--kubelet-client-key={keys}/apiserver-kubelet.key", "--kubelet-preferred-address-types=InternalIP",
              "--service-account-issuer=https://kubernetes.default.svc",
              f"--service-account-key-file={keys}/accounts.pub",
              f"--service-account-signing-key-file={keys}/accounts.key", *flags)

    def _start_control_plane(self):
        """Everything else, once the API server is ready."""
        keys, start = self.directory / "pki", self.control.start
        start("proxy", "kubectl", "--kubeconfig", keys / "admin.conf", "proxy", "--unix-socket", self.api.path)
        until(lambda: self.api.text("/readyz"), 60, lambda: f"API server: {self.control.programs['apiserver'].tail()}")
        start("controllers", "kube-controller-manager", f"--kubeconfig={keys}/controllers.conf",
              f"--service-account-private-key-file={keys}/accounts.key", f"--root-ca-file={keys}/ca.crt",
              "--use-service-account-credentials", "--allocate-node-cidrs", f"--cluster-cidr={POD_RANGE}",
              "--leader-elect=false", "--secure-port=0", "--node-monitor-grace-period=20s")
        start("scheduler", "kube-scheduler", f"--kubeconfig={keys}/scheduler.conf", "--leader-elect=false", "--secure-port=0")

    def kubectl_words(self):
        """The words before kubectl's own arguments."""
        return [*self.control.enter(network_only=True), "kubectl", "--kubeconfig", str(self.directory / "pki/admin.conf")]

    def kubectl(self, *arguments, check=True, seconds=60, **options):
        """kubectl as the cluster's administrator; its result, or (checked) what it wrote."""
        environment = self.control.environment | {"HOME": str(self.directory)}
        done = subprocess.run([*self.kubectl_words(), *map(str, arguments)], capture_output=True, text=True, check=False,
                              env=environment, timeout=seconds, **options)
        if check and done.returncode != 0:
            raise Failed(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout if check else done

    def wait_nodes(self, seconds=60):
        """Until both nodes are Ready."""
        def ready():
            items = self.api.list("Node")
            return len(items) == 2 and all(condition(item, "Ready") for item in items)
        until(ready, seconds, lambda: "nodes Ready: " + self.kubectl("describe", "nodes")[-2000:])

    def down(self):
        """Ends everything; what is left of it is an error."""
        for space in [*(node.space for node in self.nodes), *([self.control] if self.control else [])]:
            if self.keep_logs:
                shutil.copytree(space.directory / "log", self.keep_logs / space.name, dirs_exist_ok=True)
            space.switch_off()
        self.nodes, self.control = [], None
        if left := clean(self.name, self.directory):
            raise Failed(f"left behind: {left}")


def condition(thing, kind):
    """Whether an object's condition of that kind is True."""
    found = [one for one in thing.get("status", {}).get("conditions", []) if one["type"] == kind]
    return bool(found) and found[0]["status"] == "True"


def stop_on_signals():
    """SIGTERM and SIGHUP end the test as Ctrl-C does: through the `with` blocks."""
    def stop(number, _):
        raise KeyboardInterrupt(signal.Signals(number).name)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
