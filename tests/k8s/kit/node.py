# SPDX-License-Identifier: Apache-2.0
"""A node of the cluster: containerd, kubelet, kube-proxy and Flannel on a machine of its own.

In: its name and address, certificates, images. Out: a Ready node whose default network is Flannel's VXLAN. Its daemons can
be stopped, killed and started again one by one; `reboot` takes its power. What a reboot must not keep is in memory or in
/run; the node's disk stays.
"""

import json
import os
import pathlib

from . import build
from .space import Space, until

POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
UPLINK = "eth0"
SOCKET = "/run/containerd/containerd.sock"

CONTAINERD = """version = 2
root = "{directory}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
# Limits of disk and memory are the machine's, not the test's; cgroup v1 is what some machines still have.
KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {pki}/ca.crt}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/{name}.crt
tlsPrivateKeyFile: {pki}/{name}.key
address: {address}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://{socket}
evictionHard: {{memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 250
oomScoreAdj: 0
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
nodeStatusUpdateFrequency: 4s
"""
PROXY = """apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: {pods}
hostnameOverride: {name}
oomScoreAdj: 0
clientConnection: {{kubeconfig: {pki}/kube-proxy.conf}}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"""


# What Flannel's CNI plugin makes out of subnet.env; that plugin cannot be had as a Go module, bridge can.
DEFAULT_NETWORK = {"cniVersion": "0.4.0", "name": "flannel", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True, "ipMasq": False},
    {"type": "portmap", "capabilities": {"portMappings": True}}]}


class Node:
    """One node."""

    def __init__(self, cluster, index):
        self.cluster, self.index = cluster, index
        self.name, self.address = f"node{index}", f"192.168.77.{10 + index}"
        self.directory = cluster.directory / self.name
        self.cgroup = f"{cluster.name}/{self.name}"
        self.pki = cluster.directory / "pki"
        self.space = Space("node", self.name, self.directory, self.cgroup, cluster.path)
        self.subnet = None
        self._wire()
        for name, text in (("containerd.toml", CONTAINERD), ("kubelet.yaml", KUBELET), ("proxy.yaml", PROXY)):
            (self.directory / name).write_text(text.format(
                directory=self.directory, socket=SOCKET, pki=self.pki, name=self.name, address=self.address,
                cgroup=self.cgroup, pods=POD_RANGE))
        network = {"Network": POD_RANGE, "Backend": {"Type": "vxlan"}}
        (self.directory / "net-conf.json").write_text(json.dumps(network))
        self.space.run("sh", "-c", f"mkdir -p /opt/cni/bin /etc/cni/net.d && cp {build.CACHE}/debian/usr/lib/cni/* /opt/cni/bin/")

    def _wire(self):
        """The node's uplink, plugged into the switch."""
        port, control = f"port{self.index}", self.cluster.control
        # By pid: seen from outside, where both machines have one.
        control.run("ip", "link", "add", port, "type", "veth", "peer", "name", UPLINK, "netns", self.space.pid,
                    network_only=True)
        control.ip(f"link set {port} master switch up")
        for line in (f"addr add {self.address}/24 dev {UPLINK}", f"link set {UPLINK} up",
                     f"route add default via {self.cluster.control_address}"):
            self.space.ip(line)

    def start_runtime(self):
        """containerd alone."""
        self.space.start("containerd", "containerd", "-c", self.directory / "containerd.toml")
        until(lambda: self.space.run("ctr", "-a", SOCKET, "version", check=False).returncode == 0, 20,
              f"containerd on {self.name}", 0.1)

    def import_images(self, images):
        """The images of these archives, for pods."""
        for image in images:
            self.space.run("ctr", "-a", SOCKET, "-n", "k8s.io", "images", "import", image)

    def start_kubelet(self):
        """kubelet alone."""
        self.space.start("kubelet", "kubelet", f"--config={self.directory}/kubelet.yaml",
                         f"--kubeconfig={self.pki}/{self.name}.conf", f"--hostname-override={self.name}",
                         f"--node-ip={self.address}", "--v=2")

    def start_network(self):
        """kube-proxy and Flannel, once the API server has given this node a range; then the default network."""
        self.space.start("kube-proxy", "kube-proxy", f"--config={self.directory}/proxy.yaml")
        self.space.start("flannel", "flannel", self.pki / "flannel.conf", self.directory / "net-conf.json", UPLINK,
                         "/run/flannel/subnet.env", NODE_NAME=self.name)

        def leased():
            done = self.space.run("cat", "/run/flannel/subnet.env", check=False)
            return dict(line.split("=", 1) for line in done.stdout.split()) if done.returncode == 0 else None

        lease = until(leased, 20, lambda: f"Flannel on {self.name}: {self.space.programs['flannel'].tail()}", 0.1)
        self.subnet, mtu = lease["FLANNEL_SUBNET"].replace(".1/", ".0/"), int(lease["FLANNEL_MTU"])
        network = json.loads(json.dumps(DEFAULT_NETWORK))
        network["plugins"][0] |= {"mtu": mtu, "ipam": {"type": "host-local", "ranges": [[{"subnet": self.subnet}]],
                                                       "routes": [{"dst": POD_RANGE}]}}
        self.write("/etc/cni/net.d/10-flannel.conflist", json.dumps(network))
        # The network's router knows where pods are: answers of the API server come back.
        self.cluster.control.ip(f"route replace {self.subnet} via {self.address}")

    def install_multinet(self):
        """The double of Multus: its program, and a configuration that the runtime finds before Flannel's."""
        keys = {"caFile": self.pki / "ca.crt", "certFile": self.pki / "multinet.crt", "keyFile": self.pki / "multinet.key"}
        conf = {"cniVersion": "0.4.0", "name": "multinet", "type": "multinet", "binDir": "/opt/cni/bin",
                "cacheDir": "/var/lib/cni/multinet", "clusterNetwork": "/etc/cni/net.d/10-flannel.conflist",
                "capabilities": {"portMappings": True},
                "api": {"server": f"https://{self.cluster.control_address}:6443"} | {k: str(v) for k, v in keys.items()}}
        self.space.run("cp", build.CACHE / "bin/multinet", "/opt/cni/bin/multinet")
        self.write("/etc/cni/net.d/00-multinet.conf", json.dumps(conf))

    def write(self, path, text, mode=0o644):
        """A file on the node, whole or not at all."""
        self.space.run("sh", "-c", f"cat >{path}.new && chmod {mode:o} {path}.new && mv {path}.new {path}", input=text)

    def kubelet(self):
        return self.space.programs["kubelet"]

    def reboot(self):
        """Power off and on: memory, /run, links and cgroups are gone, the disk is kept."""
        self.space.switch_off()
        remove_cgroups(self.cgroup)
        self.space.switch_on()
        self._wire()
        self.start_runtime()
        self.start_kubelet()
        self.start_network()


def remove_cgroups(name):
    """Removes a branch of each hierarchy, its leaves first; what is still in use is left, and told."""
    left = []
    for hierarchy in pathlib.Path("/sys/fs/cgroup").iterdir():
        if not (hierarchy / name).is_dir():
            continue
        for directory, _, _ in os.walk(hierarchy / name, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                left.append(directory)
    return left
