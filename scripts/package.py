#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packages of KTSN.

In: the programs that `make build` made. Out, in one directory: Debian packages and RPMs of KTSN (programs, library, manual pages,
completions, systemd unit), of the laboratory (ktsn-bench) and of the Helm chart's renderer (ktsn-k8s), debug symbols, archives of the
container images, the Helm chart, a CycloneDX document for each, and SHA256SUMS. The same programs and the same commit give the same
octets. It must never: need root, a container engine, or the network, except for nfpm's modules.
"""

import argparse
import functools
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = ROOT / "scripts/packaging"
sys.path[:0] = [str(ROOT / "tests/k8s"), str(RECIPE)]
import oci  # noqa: E402
import sbom  # noqa: E402
from kit import image, images  # noqa: E402

CHART = ROOT / "k8s/deploy/helm/ktsn"
# Architectures by Debian's names, with RPM's. arm64: the recipe is the same; it was never built.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
# Folders that are ours, and go with each package.
OWN = {"ktsn": ("/etc/ktsn", "/usr/lib/ktsn", "/usr/share/doc/ktsn", "/usr/share/doc/ktsn/examples", "/usr/share/doc/ktsn/examples/schedules",
       "/usr/share/doc/ktsn/examples/monitoring"), "ktsn-bench": ("/usr/share/doc/ktsn-bench",), "ktsn-k8s": ("/usr/share/doc/ktsn-k8s",)}
# The programs of each package, with the words that make their manual pages and completions; a Go program has neither, and no symbols.
PROGRAMS = {"ktsn": {"ktsn": ("/usr/bin/ktsn", "generate"), "ktsnd": ("/usr/sbin/ktsnd", "--generate")},
            "ktsn-bench": {"ktsn-bench": ("/usr/bin/ktsn-bench", "generate")},
            "ktsn-k8s": {"ktsn-chart": ("/usr/bin/ktsn-chart", None)}}
RPM_PLACES = {"/usr/share/zsh/vendor-completions": "/usr/share/zsh/site-functions"}
MAINTAINER = "The KTSN maintainers"
DESCRIPTIONS = {"ktsn": """Exact transmit times for programs in containers
KTSN hands a program's datagrams to the network at the instants that the program
asks for (SO_TXTIME), also from containers and behind overlay networks. ktsnd is
the daemon, libktsn.so the library that programs preload, ktsn the command line.""", "ktsn-bench": """Measurements of KTSN, machines and guests
ktsn-bench has the commands ktsn bench, rt, vm, remote and report: experiments on one
machine or two, throw-away guests, and reports of what was measured.""", "ktsn-k8s": """Installation of KTSN in a Kubernetes cluster
ktsn-k8s has what the commands ktsn k8s install and uninstall need: the Helm chart of
KTSN, and the program ktsn-chart that renders it."""}


class Failed(Exception):
    """What is missing, and what to do."""


def run(*argv, **options):
    return subprocess.run([str(word) for word in argv], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def commit():
    """(version, seconds of the epoch): Cargo.toml's version if this commit has its tag, else with the commit behind it, which sorts before."""
    version = re.search(r'^version = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    seconds, short = run("git", "-C", ROOT, "log", "-1", "--format=%ct %h").split()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or seconds)
    if f"v{version}" in run("git", "-C", ROOT, "tag", "--points-at", "HEAD").split():
        return version, epoch
    stamp = run("date", "-u", "-d", f"@{seconds}", "+%Y%m%d%H%M%S").strip()
    return f"{version}~{stamp}.{short}", epoch


class Stage:
    """What a package installs: a directory tree, and the mode of each file."""

    def __init__(self, directory, package):
        self.directory, self.package = directory, package
        self.config = set()  # files that an upgrade does not replace

    def place(self, name):
        path = self.directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def file(self, source, name, executable=False):
        path = self.place(name)
        shutil.copyfile(source, path)
        path.chmod(0o755 if executable else 0o644)
        return path

    def text(self, name, text):
        path = self.place(name)
        path.write_bytes(text)
        path.chmod(0o644)

    def contents(self, epoch, places):
        """The files as nfpm reads them, sorted; all of one time, root's. `places`: folders that are called otherwise there."""
        listed = [{"dst": name, "type": "dir", "file_info": {"mode": 0o755}} for name in OWN.get(self.package, ())]
        for path in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            os.utime(path, (epoch, epoch))
            name = f"/{path.relative_to(self.directory)}"
            for debian, other in places.items():
                name = name.replace(debian, other)
            # nfpm says so in RPM alone; dpkg asks on an upgrade, as ever.
            kind = {"type": "config|noreplace"} if name in self.config else {}
            listed.append({"src": str(path), "dst": name, **kind, "file_info": {"mode": path.stat().st_mode & 0o777}})
        return listed


def stage_programs(programs, stage, debug):
    """The programs without what only a debugger reads, which goes into `debug` under its build id."""
    for name, (to, word) in PROGRAMS[stage.package].items():
        source = built(programs / name)
        path = stage.file(source, to, executable=True)
        if word is None:
            continue
        found = re.search(r"Build ID: ([0-9a-f]{40})", run("readelf", "-n", path))
        if not found:
            raise Failed(f"{source}: it has no build id; link it with --build-id")
        symbols = debug.place(f"/usr/lib/debug/.build-id/{found[1][:2]}/{found[1][2:]}.debug")
        run("objcopy", "--only-keep-debug", "--compress-debug-sections", path, symbols)
        symbols.chmod(0o644)
        strip(path)


def built(source):
    if not source.exists():
        raise Failed(f"{source}: not built; run `make build`")
    return source


def strip(path):
    run("strip", "--strip-unneeded", "--remove-section=.comment", path)


def stage_pages(programs, stage, scratch):
    made = scratch / f"{stage.package}.pages"
    words = {name: word for name, (_, word) in PROGRAMS[stage.package].items() if word}
    for name, word in words.items():
        for kind in ("man", "completions"):
            run(programs / name, word, kind, made / kind)
    for page in sorted(made.glob("man/*")):
        stage.text(f"/usr/share/man/man{page.suffix[1:]}/{page.name}.gz", gzip.compress(page.read_bytes(), 9, mtime=0))
    for name in words:
        # Without its indentation, two fifths of it: no text of it goes over lines.
        lines = (made / f"completions/{name}.bash").read_bytes().splitlines(keepends=True)
        stage.text(f"/usr/share/bash-completion/completions/{name}", b"".join(line.lstrip(b" ") for line in lines))
        stage.file(made / f"completions/_{name}", f"/usr/share/zsh/vendor-completions/_{name}")
        stage.file(made / f"completions/{name}.fish", f"/usr/share/fish/vendor_completions.d/{name}.fish")
    stage.file(ROOT / "LICENSE", f"/usr/share/doc/{stage.package}/copyright")
    stage.text(f"/usr/share/doc/{stage.package}/changelog.gz", gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), 9, mtime=0))


def stage_rest(programs, stage, version):
    """The library, unit, configuration, examples."""
    strip(stage.file(built(programs / "libktsn.so"), "/usr/lib/ktsn/libktsn.so"))
    stage.text("/usr/lib/ktsn/image-tag", f"{tag(version)}\n".encode())
    unit = (ROOT / "examples/systemd/ktsnd.service").read_text()
    moved = unit.replace("/usr/local/bin/ktsnd", "/usr/sbin/ktsnd")
    if moved == unit:
        raise Failed("examples/systemd/ktsnd.service starts no /usr/local/bin/ktsnd: mend scripts/package.py")
    stage.text("/usr/lib/systemd/system/ktsnd.service", moved.encode())
    stage.file(RECIPE / "tmpfiles.conf", "/usr/lib/tmpfiles.d/ktsn.conf")
    stage.file(RECIPE / "ktsnd.toml", "/etc/ktsn/ktsnd.toml")
    stage.config.add("/etc/ktsn/ktsnd.toml")
    stage.file(RECIPE / "example.toml", "/usr/share/doc/ktsn/examples/ktsnd.toml")
    stage.file(ROOT / "examples/send.py", "/usr/share/doc/ktsn/examples/send.py")
    for schedule in sorted((ROOT / "examples/schedules").iterdir()):
        stage.file(schedule, f"/usr/share/doc/ktsn/examples/schedules/{schedule.name}")
    for name in ("alerts.yaml", "dashboard.json"):
        stage.file(CHART / "monitoring" / name, f"/usr/share/doc/ktsn/examples/monitoring/{name}")


def needs(*programs):
    """(dependencies of the Debian package, of the RPM): the newest version of each symbol that the programs ask for."""
    asked = "\n".join(run("readelf", "-V", "-W", path) for path in programs)
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", asked)]
    if not versions:
        return [], []  # static
    glibc = ".".join(map(str, max(versions)))
    return ([f"libc6 (>= {glibc})", "libgcc-s1 (>= 4.2)"],
            [f"libc.so.6(GLIBC_{glibc})(64bit)", "libgcc_s.so.1()(64bit)"])


@functools.cache
def nfpm():
    """The packager, built from its sources as scripts/packaging/go.mod names them."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    program = target / "go-tools/nfpm"
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly", "GOTOOLCHAIN": "local"}
    run("go", "build", "-o", program, "github.com/goreleaser/nfpm/v2/cmd/nfpm", cwd=RECIPE, env=os.environ | settings)
    return program


def recipe(name, version, architecture, epoch, stage, places=None):
    description = DESCRIPTIONS.get(stage.package, f"Debug symbols of {stage.package.removesuffix('-dbgsym')}")
    return {"name": name, "arch": architecture, "platform": "linux", "version": version, "version_schema": "none",
            "section": "net", "priority": "optional", "maintainer": MAINTAINER, "description": description, "license": "Apache-2.0",
            "mtime": run("date", "-u", "-d", f"@{epoch}", "+%Y-%m-%dT%H:%M:%SZ").strip(), "disable_globbing": True, "umask": 0o022,
            "contents": stage.contents(epoch, places or {}), "rpm": {"buildhost": "ktsn", "group": "System/Base", "summary": description.split("\n", 1)[0]}}


def packages(package, programs, out, scratch, version, epoch, architecture):
    """Debian package, RPM, debug symbols; their files, and the octets installed."""
    stage, debug = Stage(scratch / package, package), Stage(scratch / f"{package}.debug", package)
    stage_programs(programs, stage, debug)
    stage_pages(programs, stage, scratch)
    for_deb, for_rpm = needs(*(stage.place(to) for to, _ in PROGRAMS[package].values()))
    more_of_deb, scripts = {}, {}
    if package == "ktsn":
        stage_rest(programs, stage, version)
        scripts = {"scripts": {"preremove": str(RECIPE / "prerm.sh"), "postinstall": str(RECIPE / "postinst.sh"), "postremove": str(RECIPE / "postrm.sh")}}
        more_of_deb = {"recommends": ["iptables", "nftables"], "suggests": ["ktsn-bench", "ktsn-k8s"]}
    else:
        for_deb, for_rpm = [*for_deb, f"ktsn (= {version})"], [*for_rpm, f"ktsn = {version}-1"]
        # A ktsn before 0.1.0 had the laboratory's pages itself. Without this dpkg refuses whichever comes second.
        more_of_deb = {"replaces": [f"ktsn (<< {version})"]}
    deb = recipe(package, version, architecture, epoch, stage) | scripts | more_of_deb | {"depends": for_deb}
    rpm = recipe(package, version, architecture, epoch, stage, RPM_PLACES) | scripts | {"release": "1", "depends": for_rpm}
    debug.package = f"{package}-dbgsym"
    symbols = recipe(debug.package, version, architecture, epoch, debug) | {"section": "debug", "depends": [f"{package} (= {version})"]}
    made = []
    forms = [(deb, "deb", f"{package}_{version}_{architecture}.deb"), (rpm, "rpm", f"{package}-{version}-1.{ARCHITECTURES[architecture]}.rpm")]
    if debug.directory.exists():
        forms.append((symbols, "deb", f"{package}-dbgsym_{version}_{architecture}.deb"))
    for config, form, file in forms:
        (scratch / "nfpm.json").write_text(json.dumps(config))
        run(nfpm(), "package", "--config", scratch / "nfpm.json", "--packager", form, "--target", out / file,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
        made.append(out / file)
    return made, sum(path.stat().st_size for path in stage.directory.rglob("*") if path.is_file())


def workload(context, programs):
    context.program(programs / "ktsn", "bin/ktsn")
    context.file(pathlib.Path("/bin/busybox"), "busybox")


IMAGES = {"node": images.node, "controller": images.controller, "workload": workload}
# What each image holds of ours.
IN_IMAGES = {"node": (("ktsn", "ktsnd", "libktsn"), ("ktsn-node-agent", "tsn-cni")),
             "controller": ((), ("ktsn-controller",)), "workload": (("ktsn",), ())}


def foreign(context):
    """The files of an image that come from Debian packages, as they are called on this machine."""
    for folder in ("libraries", "filter"):
        for path in sorted((context.directory / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield pathlib.Path("/", path.relative_to(context.directory / folder))
    if (context.directory / "busybox").exists():
        yield pathlib.Path("/bin/busybox")


def archives(programs, out, scratch, version, architecture):
    """{image: (archive, octets of its unpacked layer, components)}."""
    made = {}
    for name, maker in IMAGES.items():
        context = images.Context(scratch / f"{name}.context")
        maker(context, programs)
        layer, config = image.follow(images.IMAGES / name / "Containerfile", context.directory)
        archive = out / f"ktsn-{name}-{version}-{architecture}.tar"
        octets = oci.write(archive, layer, config, f"localhost/ktsn-{name}:{tag(version)}", architecture)
        ours, go = IN_IMAGES[name]
        components = sbom.crates(*ours) + sbom.modules(*(programs / program for program in go)) + sbom.debian(*foreign(context))
        made[name] = (archive, octets, components)
    return made


def tag(version):
    """A version as a tag may be: without a tilde."""
    return version.replace("~", "-")


def chart(out, version, epoch):
    """The Helm chart, with the images' names of this build as its defaults."""
    made = out / f"ktsn-chart-{version}.tgz"
    files = {path.relative_to(CHART): path.read_bytes() for path in sorted(CHART.rglob("*")) if path.is_file()}
    values, count = re.subn(rb"(localhost/ktsn-(?:node|controller)):dev", rb"\1:" + tag(version).encode(), files[pathlib.Path("values.yaml")])
    if count != 2:
        raise Failed(f"{CHART}/values.yaml names {count} images of ours, not 2: mend scripts/package.py")
    files[pathlib.Path("values.yaml")] = values
    octets = io.BytesIO()
    with tarfile.open(fileobj=octets, mode="w") as packed:
        # Chart.yaml first, as `helm package` writes it.
        for path, data in sorted(files.items(), key=lambda item: (item[0].name != "Chart.yaml", item[0])):
            entry = oci.entry(f"ktsn/{path}", data)
            entry.mtime = epoch
            packed.addfile(entry, io.BytesIO(data))
    made.write_bytes(gzip.compress(octets.getvalue(), 9, mtime=0))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="directory of the release build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/package")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=run("dpkg", "--print-architecture").strip(), help="of the programs")
    chosen = parser.parse_args()
    programs, out = chosen.programs.resolve(), chosen.out.resolve()
    os.chdir(ROOT)
    version, epoch = commit()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        sizes = {}
        for package, components in (("ktsn", sbom.crates("ktsn", "ktsnd", "libktsn")), ("ktsn-bench", sbom.crates("ktsn-bench")),
                                    ("ktsn-k8s", sbom.modules(programs / "ktsn-chart"))):
            made, sizes[f"{package}, installed"] = packages(package, programs, out, scratch, version, epoch, chosen.arch)
            (out / f"{package}.cdx.json").write_text(sbom.document(package, version, epoch, components, made))
        for name, (archive, octets, components) in archives(programs, out, scratch, version, chosen.arch).items():
            sizes |= {f"ktsn-{name}, archive": archive.stat().st_size, f"ktsn-{name}, unpacked": octets}
            (out / f"ktsn-{name}.cdx.json").write_text(sbom.document(f"ktsn-{name}", version, epoch, components, [archive]))
    chart(out, version, epoch)
    files = sorted(path for path in out.iterdir())
    (out / "sizes.json").write_text(json.dumps(sizes, indent=1) + "\n")
    (out / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files))
    for path in files:
        print(f"{path.stat().st_size:>11}  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    print("\n".join(f"{octets / 1e6:8.1f} MB  {what}" for what, octets in sizes.items()))


if __name__ == "__main__":
    try:
        main()
    except (Failed, ValueError) as error:
        sys.exit(f"package: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"package: {' '.join(map(str, error.cmd))} failed with {error.returncode}")
