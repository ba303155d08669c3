# SPDX-License-Identifier: BSD-2-Clause
"""The Linux guest: Debian's kernel for i386, and an initramfs with its modules of virtio-net and the program linux_guest.c.

The package is fetched once by scripts/fetch-packages.sh: apt's state and the installed packages of this machine stay as they are. What is needed
of it is kept in KTSN_VIRTIO_NET_CACHE (~/.cache/ktsn/virtio-net).
"""

import pathlib
import shutil
import stat
import subprocess
import tarfile
import tempfile

import build
import rtos_build

PACKAGE = "linux-image-686-pae"
# In the order in which they are loaded.
MODULES = ("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "failover", "net_failover", "virtio_net")
# The tree's way to fetch packages: a state of its own, nothing is installed.
FETCH = build.HERE.parents[1] / "scripts" / "fetch-packages.sh"
COMPILER = ["gcc", "-m32", "-march=i686", "-ffreestanding", "-fno-pic", "-no-pie", "-fno-stack-protector", "-O2", "-nostdlib", "-static",
            "-Wl,--build-id=none", "-Wl,-z,noexecstack"]


class Missing(RuntimeError):
    """What this machine lacks, and how to get it."""

    def __init__(self, what, remedy):
        super().__init__(f"{what}; remedy: {remedy}")
        self.what, self.remedy = what, remedy


def fetch(directory):
    """Fetches the kernel's package into `directory`. apt checks the signatures."""
    fetched = directory / "fetched"
    done = subprocess.run(["sh", FETCH, fetched, "i386", PACKAGE], capture_output=True, text=True)
    packages = list(fetched.glob("*.deb"))
    if done.returncode != 0 or len(packages) != 1:
        remedy = f"put the file {PACKAGE.replace('-686', '-*-686')}_*_i386.deb of Debian 12 into {rtos_build.cache()}"
        raise Missing(f"{PACKAGE} cannot be fetched ({done.stderr.strip()[-300:]})", remedy)
    return packages[0]


def unpack(package, directory):
    """The kernel and its modules, out of the package."""
    wanted = {f"{name}.ko": name for name in MODULES}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as files:
            for member in files:
                name = pathlib.PurePath(member.name).name
                if member.isfile() and (name in wanted or name.startswith("vmlinuz-")):
                    (directory / (name if name in wanted else "vmlinuz")).write_bytes(files.extractfile(member).read())
    absent = [name for name in ("vmlinuz", *wanted) if not (directory / name).is_file()]
    if absent or process.returncode != 0:
        raise RuntimeError(f"{package} has no {', '.join(absent) or 'readable contents'}")


def kernel():
    """The directory with `vmlinuz`, the modules and the file `package`, which names the package; fetches the package once."""
    directory = rtos_build.cache() / "linux-i386"
    if directory.is_dir():
        return directory
    rtos_build.cache().mkdir(parents=True, exist_ok=True)
    # Unpacked beside its place: a directory of this name is always whole.
    work = pathlib.Path(tempfile.mkdtemp(dir=rtos_build.cache()))
    try:
        given = sorted(rtos_build.cache().glob("linux-image-*-686-pae_*_i386.deb"))
        package = given[-1] if given else fetch(work)
        (work / "kernel").mkdir()
        unpack(package, work / "kernel")
        (work / "kernel" / "package").write_text(package.stem + "\n")
        if not directory.is_dir():
            (work / "kernel").rename(directory)
    finally:
        shutil.rmtree(work)
    return directory


def archive(entries):
    """A cpio archive in the format that the kernel unpacks ("newc"). An entry: name, mode, content, device number (major, minor)."""
    octets = bytearray()
    for inode, (name, mode, content, device) in enumerate([*entries, ("TRAILER!!!", 0, b"", (0, 0))], 1):
        named = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(named), 0)
        octets += b"070701" + b"".join(b"%08X" % field for field in fields) + named
        octets += bytes(-len(octets) % 4) + content
        octets += bytes(-len(octets) % 4)
    return bytes(octets)


def guest(out):
    """Builds the guest. Returns its kernel, its initramfs, and the name of the kernel's package."""
    directory = kernel()
    program = out / "linux-guest"
    build.run([*COMPILER, *build.WARNINGS, build.HERE / "linux_guest.c", "-o", program])
    files = [(name, stat.S_IFDIR | 0o755, b"", (0, 0)) for name in ("dev", "proc", "m")]
    files += [("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)), ("init", stat.S_IFREG | 0o755, program.read_bytes(), (0, 0))]
    files += [(f"m/{number}", stat.S_IFREG | 0o644, (directory / f"{name}.ko").read_bytes(), (0, 0)) for number, name in enumerate(MODULES)]
    initramfs = out / "linux-guest.cpio"
    initramfs.write_bytes(archive(files))
    return directory / "vmlinuz", initramfs, (directory / "package").read_text().strip()
