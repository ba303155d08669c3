#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A large cluster without kubelets: what ktsn-controller, the API server and etcd make of it.

In: the built programs and bench-scale. Out: figures and bars on the terminal, out/bench/scale.json; exit status 1 if a bar is missed. The
API server, etcd and ktsn-controller are real processes; the Nodes' agents are played by bench-scale. Everything that it starts ends with
it, however it ends. Needs root.
"""

import argparse
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
from kit import build, cluster as clusters, pki  # noqa: E402
from kit.space import Failed, Space, until  # noqa: E402

CRDS = build.REPOSITORY / "k8s/deploy/helm/ktsn/crds"


class ControlPlane(clusters.Cluster):
    """An API server and etcd alone: no kubelets, no scheduler, and nothing that deletes pods of Nodes that say nothing."""

    def up(self, images=None):
        pki.issue(self.directory / "pki", self.control_address, {}, self.path)
        self.control = Space("control", "control", self.directory / "control", self.name, self.path)
        for line in ("link add switch type bridge", f"addr add {self.control_address}/24 dev switch", "link set switch up"):
            self.control.ip(line)
        self._start_store("--disable-admission-plugins=ServiceAccount", "--max-requests-inflight=800", "--max-mutating-requests-inflight=400")
        self.control.start("proxy", "kubectl", "--kubeconfig", self.kubeconfig, "proxy", "--unix-socket", self.api.path)
        until(lambda: self.api.text("/readyz"), 60, lambda: f"API server: {self.control.programs['apiserver'].tail()}")
        self.kubectl("apply", *(word for crd in sorted(CRDS.glob("*.yaml")) for word in ("-f", crd)))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")

    @property
    def kubeconfig(self):
        return self.directory / "pki/admin.conf"

    def controller(self, program):
        """ktsn-controller, as it runs in a pod but for its rights: its own are tested in e2e-k8s."""
        return self.control.start("ktsn-controller", program, "--kubeconfig", self.kubeconfig, "--tsn-cidr", "100.64.0.0/10", "--identity", "scale")


def arguments():
    parser = argparse.ArgumentParser(description="A large cluster without kubelets, on a real API server",
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="examples:\n  make bench-scale\n  make bench-scale NODES=200\n")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="directory of ktsn-controller")
    parser.add_argument("--bench", type=pathlib.Path, required=True, help="the program bench-scale")
    parser.add_argument("--nodes", type=int, default=2000, help="with ten TSN pods and five Streams each")
    parser.add_argument("--seconds", type=int, default=60, help="of rest, and of churn")
    parser.add_argument("--json", type=pathlib.Path, default=build.REPOSITORY / "out/bench/scale.json")
    options = parser.parse_args()
    if not 100 <= options.nodes <= 16000:
        parser.error(f"--nodes: found {options.nodes}, expected 100 to 16000")
    return options


def main():
    options = arguments()
    clusters.stop_on_signals()
    logs = build.REPOSITORY / "out/scale-logs"
    with ControlPlane(build.everything(), keep_logs=logs) as control_plane:
        control_plane.up()
        controller = control_plane.controller(options.programs.resolve() / "ktsn-controller")
        words = [options.bench.resolve(), "-kubeconfig", control_plane.kubeconfig, "-controller", controller.pid, "-nodes", options.nodes,
                 "-schedules", max(options.nodes // 40, 1), "-idle", f"{options.seconds}s", "-churn", f"{options.seconds}s", "-json", options.json.resolve()]
        status = subprocess.run([*control_plane.control.enter(network_only=True), *map(str, words)], stdin=subprocess.DEVNULL, check=False).returncode
        if not controller.alive():
            raise Failed(f"ktsn-controller ended: {controller.tail()}")
    sys.exit(status)


if __name__ == "__main__":
    main()
