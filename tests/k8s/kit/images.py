# SPDX-License-Identifier: Apache-2.0
"""The images of the cluster: KTSN's, from k8s/deploy/images, the pause process that every pod needs, and workloads of other kinds.

In: the built programs, compilers. Out: archives, each with its reference. A context holds what its Containerfile copies: programs and
the shared libraries that the loader would give them here, so an image runs what was tested, and nothing else.
"""

import gzip
import os
import pathlib
import platform
import shutil
import subprocess

from . import build, image

IMAGES = build.REPOSITORY / "k8s/deploy/images"
REGISTRY = "localhost/ktsn"
MACHINE = platform.machine()
# Where Debian has the libraries of this machine.
LIBRARIES = f"usr/lib/{MACHINE}-linux-gnu"
# The node's packet filter is read by these (docs/guide/policy.md); both generations of iptables stand in Debian's tools.
FILTER = ("xtables-nft-multi", "xtables-legacy-multi", "nft")
LINKS = {"iptables-save": "xtables-nft-multi", "ip6tables-save": "xtables-nft-multi",
         "iptables-nft": "xtables-nft-multi", "ip6tables-nft": "xtables-nft-multi",
         "iptables-legacy": "xtables-legacy-multi", "ip6tables-legacy": "xtables-legacy-multi",
         "iptables-legacy-save": "xtables-legacy-multi", "ip6tables-legacy-save": "xtables-legacy-multi"}
PAUSE = 'FROM scratch\nCOPY busybox /bin/\nENTRYPOINT ["/bin/busybox", "sleep", "2147483647"]\n'
# Programs that ask for transmit times and know nothing of KTSN, as other people's images hold them.
KINDS = {"musl": "FROM scratch\nCOPY lib/ /lib/\nCOPY talker /\nUSER 65532:65532\nENTRYPOINT [\"/talker\"]\n",
         "jemalloc": "FROM scratch\nCOPY libraries/ /\nCOPY talker /\nUSER 65532:65532\nENV LD_PRELOAD=/usr/lib/libjemalloc.so.2\n"
                     "ENTRYPOINT [\"/talker\"]\n",
         "static": "FROM scratch\nCOPY talker /\nUSER 65532:65532\nENTRYPOINT [\"/talker\"]\n"}
TALKERS = build.REPOSITORY / "tests/programs"


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

    def packed(self, source, place):
        """What is not used here: the agent unpacks it on the node, without what only a debugger reads. The same file, the same octets."""
        if not source.exists():
            raise build.Missing(f"{source}: not built; `make build`")
        path = self.directory / place
        self.file(source, place)
        subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", str(path)], check=True)
        path.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        path.chmod(0o644)

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
    for name in ("ktsnd", "ktsn", "ktsn-node-agent"):
        context.program(programs / name, f"bin/{name}")
    # The agent under another name (k8s/cmd/ktsn-node-agent).
    context.link("bin/ktsn-respawn", "ktsn-node-agent")
    for name in ("libktsn.so", "tsn-cni"):
        context.packed(programs / name, f"install/{name}.gz")
    for name in FILTER:
        found = pathlib.Path(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") or f"/usr/sbin/{name}")
        context.program(found, f"filter/usr/sbin/{name}", own=False)
    # The probe of a real-time check (`agent.rtCheck`).
    context.program(pathlib.Path("/usr/bin/cyclictest"), "filter/usr/bin/cyclictest", own=False)
    for name, target in LINKS.items():
        context.link(f"filter/usr/sbin/{name}", target)
    modules = pathlib.Path("/", LIBRARIES, "xtables")
    # Those of ebtables and arptables (libebt_, libarpt_) have no reader here.
    for module in sorted(path for family in ("libxt_", "libipt_", "libip6t_") for path in modules.glob(f"{family}*.so")):
        if module.is_symlink():
            context.link(f"filter{module}", module.readlink())
        else:
            context.file(module, f"filter{module}")


def controller(context, programs):
    context.program(programs / "ktsn-controller", "bin/ktsn-controller")


def workload(context, programs):
    context.program(programs / "ktsn", "bin/ktsn")
    context.file(build.CACHE / "debian/bin/busybox", "busybox")


def pause(context, _):
    context.file(build.CACHE / "debian/bin/busybox", "busybox")


def compiled(context, *words, **environment):
    """`talker` in the context, by this compiler."""
    build.run([*words[:-1], "-o", context.directory / "talker", TALKERS / words[-1]], build.CACHE / "log/talker.log",
              cwd=context.directory, env=os.environ | environment)


def musl(context, _):
    """As Alpine's: another C library, which reads no /etc/ld.so.preload."""
    compiled(context, "musl-gcc", "-O2", "faults_talker.c")
    loader = f"lib/ld-musl-{MACHINE}.so.1"
    context.file(pathlib.Path("/", loader), loader)


def jemalloc(context, _):
    """Its image preloads a library of its own."""
    compiled(context, "gcc", "-O2", "faults_talker.c")
    library = build.CACHE / "debian" / LIBRARIES / "libjemalloc.so.2"
    context.file(library, "libraries/usr/lib/libjemalloc.so.2")
    for needed in {*image.libraries(context.directory / "talker"), *image.libraries(library)}:
        context.file(needed, f"libraries{needed}")


def static(context, _):
    """As distroless: a Go program without any library."""
    compiled(context, "go", "build", "-trimpath", "capture_talker.go", CGO_ENABLED="0", GOTOOLCHAIN="local", GOFLAGS="")


MAKERS = {"node": node, "controller": controller, "workload": workload, "pause": pause, "musl": musl, "jemalloc": jemalloc,
          "static": static}


def reference(name):
    return "localhost/pause:1" if name == "pause" else f"{REGISTRY}-{name}:dev"


def make(programs, directory):
    """Archives of all images; {name: (archive, octets)}."""
    made = {}
    for name, maker in MAKERS.items():
        context = Context(directory / f"{name}.context")
        maker(context, programs)
        containerfile = IMAGES / name / "Containerfile"
        if text := {"pause": PAUSE, **KINDS}.get(name):
            containerfile = context.directory / "Containerfile"
            containerfile.write_text(text)
        archive = directory / f"{name}.tar"
        octets = image.build(containerfile, context.directory, reference(name), archive)
        shutil.rmtree(context.directory)
        made[name] = (archive, octets)
    return made
