#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs KTSN's packages in a clean Debian 12 and in a guest of it under systemd, uses and removes them, and looks into the images.

In: `make package`'s output, the release build, root; optionally an older commit's `make package` output, for an update from it. Out: a line
for each check, out/test-package/closing.txt, exit status 1 if one failed. The bars: two commands and 60 s to the first timed datagram,
25 MB installed of a package, 35 MB of ktsn-k8s, the same octets when made twice; 45 MB for the node's image, packed and unpacked
(docs/design/kubernetes-install.md).
"""

import concurrent.futures
import fcntl
import hashlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/k8s"), str(ROOT / "tests/package")]
from kit.checks import Checks, only  # noqa: E402
from machine import Machine  # noqa: E402
import service  # noqa: E402
import update  # noqa: E402

PACKAGE = ROOT / "out/package"
OUT = ROOT / "out/test-package"
FIRST_DATAGRAM_MAX, NODE_IMAGE_MAX = 60, 45e6  # seconds, octets
INSTALLED_MAX = {"ktsn": 25e6, "ktsn-bench": 25e6, "ktsn-k8s": 35e6}


def one(pattern, place=PACKAGE):
    return only(place, pattern)


def same_twice(programs):
    """Packs once more: each file has the same octets."""
    with tempfile.TemporaryDirectory() as again:
        subprocess.run([ROOT / "scripts/package.py", "--programs", programs, "--out", again], check=True, stdout=subprocess.DEVNULL)
        first, second = ((pathlib.Path(place) / "SHA256SUMS").read_text() for place in (PACKAGE, again))
    assert first == second, f"other octets the second time:\n{first}\n{second}"


def sums_are_right():
    lines = [line.split("  ") for line in (PACKAGE / "SHA256SUMS").read_text().splitlines()]
    assert len(lines) == 18, lines
    for digest, name in lines:
        assert hashlib.sha256((PACKAGE / name).read_bytes()).hexdigest() == digest, name
    assert {name for _, name in lines} | {"SHA256SUMS", "sizes.json"} == {path.name for path in PACKAGE.iterdir()}


def sizes():
    made = json.loads((PACKAGE / "sizes.json").read_text())
    for package, most in INSTALLED_MAX.items():
        size = subprocess.run(["dpkg-deb", "-f", one(f"{package}_*.deb"), "Installed-Size"], check=True, stdout=subprocess.PIPE).stdout
        assert int(size) * 1024 <= most, f"{package}: {int(size) * 1024} octets installed, at most {most:.0f}"
    assert one("ktsn-node-*.tar").stat().st_size <= NODE_IMAGE_MAX, made
    assert made["ktsn-node, unpacked"] <= NODE_IMAGE_MAX, made


def materials():
    """Each document names what it describes, by its digest, and holds no component without a version and a URL."""
    for name, archives, part in (("ktsn", ("ktsn_*.deb", "ktsn-[0-9]*.rpm"), "pkg:cargo/tokio@"),
                                 ("ktsn-bench", ("ktsn-bench_*.deb", "ktsn-bench-[0-9]*.rpm"), "pkg:cargo/plotly@"),
                                 ("ktsn-k8s", ("ktsn-k8s_*.deb", "ktsn-k8s-[0-9]*.rpm"), "pkg:golang/helm.sh/helm/v3@"), ("ktsn-node", ("ktsn-node-*.tar",), "pkg:golang/google.golang.org/grpc@"),
                                 ("ktsn-controller", ("ktsn-controller-*.tar",), "pkg:golang/k8s.io/client-go@"),
                                 ("ktsn-workload", ("ktsn-workload-*.tar",), "pkg:deb/debian/libc6@")):
        document = json.loads((PACKAGE / f"{name}.cdx.json").read_text())
        assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5"), document
        described = {file["name"]: file["hashes"][0]["content"] for file in document["metadata"]["component"]["components"]}
        for archive in map(one, archives):
            assert described[archive.name] == hashlib.sha256(archive.read_bytes()).hexdigest(), archive
        urls = [component["purl"] for component in document["components"]]
        assert len(urls) == len(set(urls)) > 5 and all(component["version"] for component in document["components"]), name
        assert any(url.startswith(part) for url in urls), f"{name}: no {part}"
        # Of the tests alone; the laboratory is in its own package alone.
        assert not any(url.startswith("pkg:cargo/proptest@") for url in urls), name
        assert name == "ktsn-k8s" or not any(url.startswith("pkg:golang/helm.sh/") for url in urls), name
        assert name == "ktsn-bench" or not any(url.startswith(("pkg:cargo/plotly@", "pkg:cargo/ktsn-lab@")) for url in urls), name


def load(archive):
    """(configuration, layers, reference) of an image as an engine reads them: every blob has the digest that names it, and both manifests name the same ones."""
    with tarfile.open(archive) as packed:
        files = {member.name: packed.extractfile(member).read() for member in packed if member.isfile()}

    def blob(descriptor):
        data = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (descriptor["digest"], descriptor["size"]), descriptor
        return data

    listed, = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(listed))
    config = json.loads(blob(manifest["config"]))
    docker, = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == [listed["annotations"]["io.containerd.image.name"]], docker
    assert [f"blobs/{part['digest'].replace(':', '/')}" for part in (manifest["config"], *manifest["layers"])] == [docker["Config"], *docker["Layers"]]
    return config, [blob(layer) for layer in manifest["layers"]], *docker["RepoTags"]


def image(name, *commands):
    """The image's programs start in nothing but its own files."""
    config, layers, _ = load(one(f"ktsn-{name}-*.tar"))
    assert config["config"]["Entrypoint"], config
    with tempfile.TemporaryDirectory() as root:
        for layer in layers:
            subprocess.run(["tar", "-xzf", "-", "-C", root], input=layer, check=True)
        # As every container has them.
        for folder in ("proc", "sys", "dev"):
            (pathlib.Path(root) / folder).mkdir(exist_ok=True)
        mounts = 'mount -t proc proc "$0/proc"; for name in sys dev; do mount --bind "/$name" "$0/$name"; done; exec env -i "$@"'
        enter = ["unshare", "--mount", "sh", "-ec", mounts, root]
        for words, expected in commands:
            done = subprocess.run([*enter, *config["config"]["Env"], shutil.which("chroot"), root, *words], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True, timeout=30)
            assert expected in done.stdout, f"{words}: exit status {done.returncode}: {done.stdout}"


def rt_check():
    """What the node agent runs for a real-time check, in its image. The probe goes before all other threads: no other measurement may run."""
    with open(ROOT / "out/.measure.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image("node", (["ktsn", "doctor", "--wake-ups", "500ms", "--json"], '"measured_ns": 500000000'))


def chart():
    with tarfile.open(one("ktsn-chart-*.tgz")) as packed:
        names = packed.getnames()
        values = packed.extractfile("ktsn/values.yaml").read().decode()
    assert names[0] == "ktsn/Chart.yaml" and "ktsn/crds/streams.yaml" in names, names
    for name in ("node", "controller"):
        reference = load(one(f"ktsn-{name}-*.tar"))[2]
        assert f"{name}: {reference}\n" in values, f"the chart does not name {reference}"


class Installed:
    """The package in a clean machine, from installation to removal."""

    def __init__(self, machine):
        self.machine = machine
        self.deb = "/root/ktsn.deb"
        (machine.directory / self.deb.lstrip("/")).write_bytes(one("ktsn_*.deb").read_bytes())

    def first_datagram(self):
        """The two commands of docs/guide/install.md."""
        begin = time.monotonic()
        self.machine.run("apt-get", "install", "-y", self.deb, network=True)
        said = self.machine.run("ktsn", "run", "--with-daemon", "va", "--", "ktsn", "talk", "192.0.2.2:7000", "--count", "100")
        took = time.monotonic() - begin
        assert "sent 100 of 100 datagrams" in said, said
        print(f"       first timed datagrams {took:.1f} s after the first command")
        assert took <= FIRST_DATAGRAM_MAX, f"{took:.1f} s, at most {FIRST_DATAGRAM_MAX}"

    def programs(self):
        assert re.match(r"ktsn \d", self.machine.run("ktsn", "--version"))
        assert "--attach" in self.machine.run("ktsnd", "--help")
        reference = load(one("ktsn-node-*.tar"))[2]
        assert self.machine.run("cat", "/usr/lib/ktsn/image-tag").strip() == reference.rsplit(":", 1)[1], reference
        assert "ktsn-talk(1)" in self.machine.run("man", "ktsn", MANPAGER="cat")
        assert "--run-dir" in self.machine.run("man", "ktsnd", MANPAGER="cat").replace("‐", "-")
        assert "ktsn-schedule-show" in self.machine.run("man", "ktsn-schedule-show", MANPAGER="cat")
        assert self.machine.run("bash", "-c", ". /usr/share/bash-completion/completions/ktsn && complete -p ktsn").startswith("complete ")

    def laboratory(self):
        """Its commands say which package brings them; with it they are there, and it goes without a trace."""
        done = self.machine.run("ktsn", "bench", "container", check=False)
        assert done.returncode == 3 and "install the package ktsn-bench" in done.stdout, done.stdout
        before = self.machine.files()
        (self.machine.directory / "root/ktsn-bench.deb").write_bytes(one("ktsn-bench_*.deb").read_bytes())
        self.machine.run("dpkg", "--install", "/root/ktsn-bench.deb")
        assert "Usage: ktsn bench container" in self.machine.run("ktsn", "bench", "container", "--help")
        assert self.machine.run("ktsn-bench", "--version").split()[1] == self.machine.run("ktsn", "--version").split()[1]
        assert "ktsn bench container" in self.machine.run("man", "ktsn-bench-container", MANPAGER="cat").replace("‐", "-")
        self.machine.run("dpkg", "--purge", "ktsn-bench")
        assert self.machine.files() == before, sorted(self.machine.files() ^ before)

    def kubernetes(self):
        """`ktsn k8s install` says which package brings the renderer; with it the values are judged, before a kubectl is needed."""
        done = self.machine.run("ktsn", "k8s", "install", check=False)
        assert done.returncode == 3 and "install the package ktsn-k8s" in done.stdout, done.stdout
        before = self.machine.files()
        (self.machine.directory / "root/ktsn-k8s.deb").write_bytes(one("ktsn-k8s_*.deb").read_bytes())
        self.machine.run("dpkg", "--install", "/root/ktsn-k8s.deb")
        for words, status, said in ((("--set", "agent.lok=debug"), 2, "agent.lok: the chart has no such value"), ((), 3, "install kubectl")):
            done = self.machine.run("ktsn", "k8s", "install", *words, check=False)
            assert done.returncode == status and said in done.stdout, done.stdout
        self.machine.run("dpkg", "--purge", "ktsn-k8s")
        assert self.machine.files() == before, sorted(self.machine.files() ^ before)

    def serve(self):
        """ktsnd as the unit starts it, with one attachment in the machine's own network."""
        daemon = self.machine.start("ktsnd", "--attach", "/proc/self/ns/net:va,name=talker/va,uplink=va")
        for _ in range(100):
            if '"name": "talker/va"' in self.machine.run("ktsn", "status", "--json", check=False).stdout:
                # As the lock says, for `end`: a removal takes the lock's directory away.
                return daemon, self.machine.run("cut", "-d ", "-f2", "/run/ktsn/lock").strip()
            time.sleep(0.1)
        daemon.kill()
        raise AssertionError(f"no attachment after 10 s: {daemon.stdout.read()}")

    def refused(self):
        """Removal names the attachment and changes nothing."""
        daemon = self.serve()
        try:
            for words in (("dpkg", "--remove", "ktsn"), ("apt-get", "remove", "-y", "ktsn")):
                done = self.machine.run(*words, check=False)
                assert done.returncode != 0 and "\n  talker/va\n" in done.stdout and "KTSN_FORCE_REMOVE=1" in done.stdout, done.stdout
            self.machine.run("ktsn", "status")
            # Stopped, it cannot say which it serves.
            self.machine.run("bash", "-c", f"kill -STOP {daemon[1]}")
            done = self.machine.run("dpkg", "--remove", "ktsn", check=False)
            # nsenter stops with what it has started, and lets it go on.
            daemon[0].send_signal(signal.SIGCONT)
            assert done.returncode != 0 and "ktsnd runs and does not answer" in done.stdout, done.stdout
            assert self.machine.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "ktsn") == "installed"
            # An upgrade is not refused.
            self.machine.run("dpkg", "--install", self.deb)
            self.machine.run("dpkg", "--remove", "ktsn", KTSN_FORCE_REMOVE=1)
            assert not (self.machine.directory / "usr/bin/ktsn").exists()
        finally:
            self.end(*daemon)

    def end(self, daemon, number):
        """Ends it as systemd does. `daemon` is only the command that entered the machine."""
        self.machine.run("bash", "-c", f"kill {number}", check=False)
        daemon.wait(30)

    def nothing_left(self):
        self.machine.run("dpkg", "--purge", "ktsn")
        before = self.machine.files()
        assert not [name for name in before if "ktsn" in name], [name for name in before if "ktsn" in name]
        self.machine.run("dpkg", "--install", self.deb)
        self.end(*self.serve())
        self.machine.run("dpkg", "--purge", "ktsn")
        assert self.machine.files() == before, sorted(self.machine.files() ^ before)
        # What a node agent has put beside it is in use by pods.
        self.machine.run("dpkg", "--install", self.deb)
        self.machine.run("bash", "-c", "mkdir -p /var/lib/ktsn/lib/1 /run/ktsn; cd /var/lib/ktsn; touch lib/1/libktsn.so margins /run/ktsn/node.json")
        self.machine.run("dpkg", "--purge", "ktsn")
        left = {name for name in self.machine.files() - before if not (self.machine.directory / name).is_dir()}
        assert any(name.endswith("libktsn.so") for name in left) and not any(name.endswith("margins") for name in left), left
        assert "/run/ktsn/node.json" in left, left
        self.machine.run("rm", "-r", "/var/lib/ktsn", "/run/ktsn")

    def rpm(self):
        """The RPM by rpm itself, its scripts run in the machine."""
        rpm = ["rpm", "--root", str(self.machine.directory), "--nodeps"]
        before = self.machine.files()
        subprocess.run([*rpm, "--install", *(one(f"{name}-[0-9]*.rpm") for name in INSTALLED_MAX)], check=True)
        assert re.match(r"ktsn \d", self.machine.run("ktsn", "--version"))
        assert "Usage: ktsn rt" in self.machine.run("ktsn", "rt", "--help")
        assert "install kubectl" in self.machine.run("ktsn", "k8s", "install", check=False).stdout
        verified = subprocess.run([*rpm, "--verify", *INSTALLED_MAX], stdout=subprocess.PIPE, text=True, check=False)
        assert verified.returncode == 0 and not verified.stdout, verified.stdout
        subprocess.run([*rpm, "--erase", *INSTALLED_MAX], check=True)
        # On a system of RPM packages the shells' own packages have their folders, and take them away.
        left = {name for name in self.machine.files() - before if "/rpm" not in name
                and ("ktsn" in name or not (self.machine.directory / name).is_dir())}
        assert not left, sorted(left)


def over_older(machine, older):
    """Both packages over the older one in either order, and the older one over both: dpkg refuses no file."""
    (machine.directory / "root/older.deb").write_bytes(one("ktsn_*.deb", older).read_bytes())
    both = ("/root/ktsn-bench.deb", "/root/ktsn.deb")
    for debs in (both, both[::-1]):
        machine.run("dpkg", "--install", "/root/older.deb")
        machine.run("dpkg", "--install", *debs)
        assert "Usage: ktsn bench container" in machine.run("ktsn", "bench", "container", "--help")
        machine.run("dpkg", "--force-depends", "--install", "/root/older.deb")
        machine.run("dpkg", "--purge", "ktsn-bench", "ktsn")


def installed(checks, machine, programs, older):
    if machine is None:
        return
    package = checks.step("the package is at hand", Installed, machine)
    if package:
        for name in ("first_datagram", "programs", "laboratory", "kubernetes", "refused", "nothing_left", "rpm"):
            checks.step(f"installed: {name.replace('_', ' ')}", getattr(package, name))
        checks.step("installed: under systemd, in a guest", service.check, machine.directory, programs)
        if older:
            checks.step("over an older package, and back", over_older, machine, older)
            checks.step("the same under traffic, in a guest", update.check, machine.directory, programs)


def main():
    programs, older = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    OUT.mkdir(parents=True, exist_ok=True)
    checks, machine = Checks(), Machine()
    with concurrent.futures.ThreadPoolExecutor() as beside:
        # Debian's packages are fetched meanwhile.
        made = beside.submit(machine.__enter__)
        try:
            checks.step("checksums", sums_are_right)
            checks.step("sizes", sizes)
            checks.step("materials", materials)
            checks.step("image node", image, "node", (["ktsnd", "--version"], "ktsnd "), (["ktsn", "--version"], "ktsn "), (["nft", "--version"], "nftables"),
                        (["iptables-legacy-save", "--version"], "(legacy)"), (["ip6tables-legacy-save", "--version"], "(legacy)"),
                        (["iptables-save", "--version"], "nf_tables"), (["ktsn-node-agent", "--help"], "-"),
                        (["ktsn-respawn", "--help"], "Usage: ktsn-respawn "), (["cyclictest", "--help"], "cyclictest V "))
            checks.step("image node: real-time check", rt_check)
            checks.step("image controller", image, "controller", (["/ktsn-controller", "--help"], "-"))
            checks.step("image workload", image, "workload", (["ktsn", "--version"], "ktsn "), (["busybox", "ls", "/usr/local/bin"], "ktsn\n"))
            checks.step("chart", chart)
            checks.step("the same octets when made twice", same_twice, programs)
            installed(checks, checks.step("a clean Debian", made.result), programs, older)
        finally:
            made.exception()
            machine.__exit__()
    (OUT / "results.json").write_text(json.dumps(checks.done, indent=1) + "\n")
    (OUT / "closing.txt").write_text(checks.closing() + "\n")
    print(checks.closing())
    return 1 if checks.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
