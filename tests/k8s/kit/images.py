# SPDX-License-Identifier: Apache-2.0
"""The images of the cluster: KTSN's, from k8s/deploy/images, and the pause process that every pod needs.

In: the built programs. Out: archives, each with its reference. A context holds what its Containerfile copies: programs and
the shared libraries that the loader would give them here, so an image runs what was tested, and nothing else.
"""

import pathlib
import shutil
import subprocess

from . import build, image

IMAGES = build.REPOSITORY / "k8s/deploy/images"
REGISTRY = "localhost/ktsn"
# The node's packet filter is read by these (docs/guide/policy.md); both generations of iptables stand in Debian's tools.
FILTER = ("xtables-nft-multi", "xtables-legacy-multi", "nft")
LINKS = {"iptables-save": "xtables-nft-multi", "ip6tables-save": "xtables-nft-multi",
         "iptables-nft": "xtables-nft-multi", "ip6tables-nft": "xtables-nft-multi",
         "iptables-legacy": "xtables-legacy-multi", "ip6tables-legacy": "xtables-legacy-multi"}
PAUSE = 'FROM scratch\nCOPY busybox /bin/\nENTRYPOINT ["/bin/busybox", "sleep", "2147483647"]\n'


class Context:
    """A directory that an image is made from."""

    def __init__(self, directory):
        shutil.rmtree(directory, ignore_errors=True)
        self.directory = directory
        directory.mkdir(parents=True)

    def file(self, source, place):
        to = self.directory / place
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)

    def program(self, source, place, own=True):
        """A program and the libraries it is linked with; ours without what only a debugger reads."""
        if not source.exists():
            raise build.Missing(f"{source}: not built; `make build`")
        self.file(source, place)
        if own:
            subprocess.run(["strip", str(self.directory / place)], check=True)
        for library in image.libraries(source):
            self.file(library, f"libraries{library}")

    def link(self, place, target):
        path = self.directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def node(context, programs):
    for name in ("ktsnd", "ktsn", "ktsn-node-agent", "ktsn-respawn"):
        context.program(programs / name, f"bin/{name}")
    for name in ("libktsn.so", "tsn-cni"):
        context.file(programs / name, f"install/{name}")
    for name in FILTER:
        found = pathlib.Path(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") or f"/usr/sbin/{name}")
        context.program(found, f"filter/usr/sbin/{name}", own=False)
    for name, target in LINKS.items():
        context.link(f"filter/usr/sbin/{name}", target)
    modules = pathlib.Path("/usr/lib/x86_64-linux-gnu/xtables")
    for module in sorted(modules.glob("*.so")):
        context.file(module, f"filter{module}")


def controller(context, programs):
    context.program(programs / "ktsn-controller", "bin/ktsn-controller")


def workload(context, programs):
    context.program(programs / "ktsn", "bin/ktsn")
    context.file(build.CACHE / "debian/bin/busybox", "busybox")


MAKERS = {"node": node, "controller": controller, "workload": workload}


def reference(name):
    return f"{REGISTRY}-{name}:dev"


def make(names, programs, directory):
    """Archives of the named images and of the pause image; {name: (archive, octets)}."""
    made = {}
    for name in names:
        context = Context(directory / f"{name}.context")
        MAKERS[name](context, programs)
        archive = directory / f"{name}.tar"
        octets = image.build(IMAGES / name / "Containerfile", context.directory, reference(name), archive)
        shutil.rmtree(context.directory)
        made[name] = (archive, octets)
    context = Context(directory / "pause.context")
    context.file(build.CACHE / "debian/bin/busybox", "busybox")
    containerfile = context.directory / "Containerfile"
    containerfile.write_text(PAUSE)
    octets = image.build(containerfile, context.directory, "localhost/pause:1", directory / "pause.tar")
    made["pause"] = (directory / "pause.tar", octets)
    return made
