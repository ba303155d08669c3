# SPDX-License-Identifier: Apache-2.0
"""An update from an older KTSN under traffic, and the way back.

In: a cluster without KTSN, and what `make package` made of an older commit. Out: the cluster with the built KTSN, and its pods `talker` and
`listener`; the talker's libktsn was first the older one, then the built one.
"""

import subprocess

from .cases import expect
from .checks import only
from .faults import Faults
from .ktsn import workload

# A stream of so many seconds outlives `ktsn k8s install`.
INSTALL_SECONDS = 90
# The libktsn of c6d2b201 may count a frame as lost that its ktsnd sends in its last instant.
TWICE = 2


class Older(Faults):
    """The older KTSN."""

    STEPS = ("installed", "updated", "rolled_back", "updated_again")

    def __init__(self, lifecycle, experiment, packages):
        super().__init__(lifecycle.deployed, lifecycle.programs, experiment.listener)
        self.lifecycle, self.experiment, self.packages = lifecycle, experiment, packages
        self.judges_times = lifecycle.judges_times
        self.directory = self.cluster.directory / "older"

    def by_older(self):
        """`ktsn k8s install` of the older package, with its own images."""
        tag = (self.directory / "usr/lib/ktsn/image-tag").read_text().strip()
        self.lifecycle.installed("--tag", tag, programs=self.directory / "usr/bin")

    def installed(self):
        """The older KTSN is installed by its own `ktsn`, and serves a talker and a listener."""
        subprocess.run(["dpkg-deb", "-x", only(self.packages, "ktsn_*.deb"), self.directory], check=True)
        for node in self.cluster.nodes:
            node.import_images([only(self.packages, f"ktsn-{name}-*.tar") for name in ("node", "controller")])
        self.by_older()
        self.experiment.prepare()
        self.traffic()

    def moved(self, verb, change, twice=0):
        """`change` under traffic; no pod but KTSN's notices."""
        before = self.users()
        self.renewed(verb, INSTALL_SECONDS, change, twice=twice)
        expect(self.users() == before, f"{verb}: pods or restarts changed: {set(self.users().items()) ^ set(before.items())}")
        self.traffic()

    def updated(self):
        """The built KTSN over the older one: the running pods, with the older libktsn, go on; a new pod gets an interface."""
        self.moved("update", self.lifecycle.installed, TWICE)
        self.cluster.api.apply(workload("after-update", self.cluster.nodes[0].name))
        self.ready(["after-update"])
        self.gone("after-update")

    def rolled_back(self):
        """The older KTSN over the built one: a pod with the built libktsn goes on; a new pod gets an interface."""
        self.gone("talker")
        self.experiment.prepare()
        self.traffic()
        self.moved("rollback", self.by_older)
        self.cluster.api.apply(workload("after-rollback", self.cluster.nodes[0].name))
        self.ready(["after-rollback"])
        self.gone("after-rollback")

    def updated_again(self):
        """The built KTSN once more, from what the older one has kept of it."""
        self.moved("update again", self.lifecycle.installed)
