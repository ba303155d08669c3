# SPDX-License-Identifier: Apache-2.0
"""A clean Debian 12 to install packages in.

In: mmdebstrap, the package mirror of this machine, root. Out: a directory with the smallest Debian, man-db and systemd (which runs in a guest of it alone), in which commands run: with
mounts, process numbers and, where wanted, a network of their own. All of it is removed whatever happens.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

# /run and /tmp are the machine's own and stay for its life.
MOUNTS = r"""
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
for name in sys dev; do mount --rbind "/$name" "$1/$name"; mount --make-rprivate "$1/$name"; done
mount -t tmpfs tmpfs "$1/run"
mount -t tmpfs tmpfs "$1/tmp"
ip link set lo up
ip link add va type veth peer name vb address 02:00:00:00:00:02
ip addr add 192.0.2.1/24 dev va
ip link set va up
ip link set vb up
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev va
echo ready
exec sleep infinity
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches its mirror.
SETTINGS = ("Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::Retries")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def told(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def apt_options():
    """Words of mmdebstrap: how this machine reaches its mirror."""
    return [f"--aptopt={line}" for line in told("apt-config", "dump").splitlines() if line.startswith(SETTINGS) and not line.endswith('"";')]


class Machine:
    """`with Machine() as machine`: its directory, and commands in it."""

    def __init__(self):
        self.directory, self.keeper, self.inside = None, None, None

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="ktsn-package."))
        try:
            self.fill()
            self.keeper = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", MOUNTS, "sh", self.directory],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            if self.keeper.stdout.readline() != "ready\n":
                raise OSError("the machine's mounts or devices cannot be made: see above")
            children = pathlib.Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
            self.inside = children[0]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.keeper:
            # With it end all processes in it: they have its process namespace.
            self.keeper.kill()
            self.keeper.wait()
        subprocess.run(["rm", "-rf", "--one-file-system", self.directory], check=True)

    def fill(self):
        sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
        if not sources.exists():
            sources = pathlib.Path("/etc/apt/sources.list")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=man-db,ca-certificates,systemd-sysv,iproute2", *apt_options(), "bookworm", self.directory, sources],
                       check=True, stdin=subprocess.DEVNULL)
        certificates = "etc/ssl/certs/ca-certificates.crt"
        for name in ("etc/resolv.conf", certificates):
            if pathlib.Path("/", name).exists():
                shutil.copyfile(pathlib.Path("/", name), self.directory / name)

    def argv(self, *words, network=False):
        """A command in it: in the machine's own network, or with this host's (packages are fetched by that)."""
        proxies = {name: os.environ[name] for name in PROXIES if name in os.environ}
        settings = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "KTSN_CACHE_DIR": "/var/lib/ktsn",
                    **(proxies if network else {})}
        enter = ["nsenter", f"--target={self.inside}", "--mount", "--pid", *([] if network else ["--net"])]
        return [*enter, "env", "-i", *(f"{key}={value}" for key, value in settings.items()), "chroot", str(self.directory), *map(str, words)]

    def run(self, *words, network=False, check=True, **settings):
        """What it prints, both streams; the command and all that it said are the error."""
        extra = [f"{key}={value}" for key, value in settings.items()]
        done = subprocess.run(self.argv("env", *extra, *words, network=network), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=120)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}")
        return done if not check else done.stdout

    def start(self, *words):
        return subprocess.Popen(self.argv(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def files(self):
        """What lies in it, except for what dpkg, apt and ldconfig write themselves and what ends with it."""
        own = ("./var/lib/dpkg", "./var/lib/apt", "./var/cache", "./var/log", "./etc/ld.so.cache", "./var/lib/rpm", "./root")
        found = told("find", str(self.directory), "-xdev", "-printf", "./%P\n").splitlines()
        # The mounts of the machine are not seen from here; /run and /tmp of it are looked at inside.
        inside = self.run("find", "/run", "/tmp", "-xdev").splitlines()
        return {name for name in found if not name.startswith(own)} | set(inside)
