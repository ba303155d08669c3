# SPDX-License-Identifier: Apache-2.0
"""What the cluster is made of.

In: the Debian archive and the Go module proxy, once. Out: a cache directory with programs: `debian/` (packages unpacked,
never installed: no maintainer script runs, so nothing of theirs is started on this machine), `bin/` (Kubernetes, Flannel).
It must never: install anything, take a program of another version for the right one, or go on without a program.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import subprocess
import time

from .checks import Skip

HERE = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("KTSN_K8S_CACHE") or pathlib.Path.home() / ".cache/ktsn/k8s")
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
# A module that the proxy does not have fails at once, instead of waiting for a host that is not to be reached.
PROXY = "https://proxy.golang.org"


class Missing(Exception):
    """A program that is not to be had, with the reason."""


def run(argv, log, **options):
    """Runs a program whose output goes to a log file; its last lines are the error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False, **options).returncode
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise Missing(f"{' '.join(map(str, argv))}: exit status {status} (log: {log})\n{tail}")


def stamp_of(*parts):
    """Names what something was made from."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, pathlib.Path) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def once(stamp, text, make):
    """Calls `make` unless what it makes is there already, made from the same."""
    if not (stamp.exists() and stamp.read_text() == text):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        make()
        stamp.write_text(text)


def debian():
    """Unpacks the packages of packages.txt; their directory."""
    listed = [line.split()[0] for line in (HERE / "packages.txt").read_text().splitlines()
              if line.strip() and not line.startswith("#")]
    root, archives = CACHE / "debian", CACHE / "archives"

    def make():
        for directory in (root, archives):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        # APT's sandbox user cannot write below /root; root's own right is enough to write a file.
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *listed]
        try:
            run(fetch, CACHE / "log/fetch.log", cwd=archives)
        except Missing:  # no lists yet, or old ones
            run(["apt-get", "update"], CACHE / "log/update.log")
            run(fetch, CACHE / "log/fetch.log", cwd=archives)
        for archive in sorted(archives.glob("*.deb")):
            run(["dpkg-deb", "-x", str(archive), str(root)], CACHE / "log/unpack.log")
        shutil.rmtree(archives)

    once(CACHE / "debian.stamp", stamp_of(*listed), make)
    return root


def go_version():
    found = subprocess.run(["go", "version"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise Missing("go is missing: install it (https://go.dev/dl)")
    return found.stdout.strip()


def go_programs(module, names, *ldflags, may_build=True):
    """Builds the commands of the Go module tests/k8s/MODULE by one call, so that they share what they are made of; their directory.

    The module's own package is the command of its name, others lie in folders of theirs.
    """
    source, programs, fresh = HERE / module, CACHE / "bin", CACHE / f"{module}.new"
    files = [source / "go.mod", *sorted(source.glob("**/*.go"))]
    environment = os.environ | {"CGO_ENABLED": "0", "GOPROXY": PROXY, "GOFLAGS": "-trimpath -buildvcs=false", "GOTOOLCHAIN": "local"}
    flags = " ".join(["-s -w", *ldflags])

    def make():
        if not may_build:
            raise Skip("cluster_programs_missing", f"{', '.join(names)} would have to be built into {programs} first")
        print(f"e2e-k8s: building {', '.join(names)} (once; minutes)", flush=True)
        # Into a directory of their own: a running cluster keeps the programs that it has.
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        packages = ["." if name == module else f"./{name}" for name in names]
        begun = time.monotonic()
        run(["go", "build", "-ldflags", flags, "-o", f"{fresh}/", *packages], CACHE / f"log/{module}.log", cwd=source, env=environment)
        for name in names:
            (fresh / name).rename(programs / name)
        fresh.rmdir()
        print(f"e2e-k8s: built {', '.join(names)} after {time.monotonic() - begun:.0f} s", flush=True)

    programs.mkdir(parents=True, exist_ok=True)
    once(CACHE / f"{module}.stamp", stamp_of(*files, go_version(), flags, *names), make)
    return programs


def kubernetes(may_build=True):
    """Builds Kubernetes and Flannel; the directory with one link for each component. It takes minutes, so it may be skipped instead."""
    wanted = [line.split() for line in (HERE / "kube/go.mod").read_text().splitlines()]
    version = next(words[1] for words in wanted if words[:1] == ["k8s.io/kubernetes"])
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean",
             "gitCommit": "0" * 40, "buildDate": "2026-01-01T00:00:00Z"}
    programs = go_programs("kube", ["kube", "flannel"], *(f"-X {package}.{k}={v}" for k, v in facts.items()), may_build=may_build)
    for name in COMPONENTS:
        link = programs / name
        if not link.is_symlink():
            link.symlink_to("kube")
    return programs


def everything(may_build=True):
    """Everything that the cluster needs, at once; the value of PATH that finds it."""
    with concurrent.futures.ThreadPoolExecutor() as at_once:
        root, programs = at_once.submit(debian), at_once.submit(kubernetes, may_build)
        at_once.submit(go_programs, "multinet", ["multinet"]).result()
        directories = [programs.result(), *(root.result() / at for at in ("usr/bin", "usr/sbin", "bin"))]
    return ":".join(dict.fromkeys(map(str, directories)))
