# SPDX-License-Identifier: Apache-2.0
"""The clean Debian as a guest with systemd.

In: the tree of a Machine, which the guest only reads, and a script. Out: what the script printed, and its exit status. The kernel and its
modules are those of `ktsn vm`. QEMU interprets its instructions; nothing here judges a time.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile

from kit.checks import Skip

# The guest's first process: the tree under a file system in memory, then systemd. Nothing of the host can be written but the folder `share`.
START = """#!/bin/dash
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in virtio_pci 9p 9pnet_virtio overlay veth; do modprobe $module; done
insmod /e1000e.ko
modprobe virtio_net
mkdir /tree /memory /root.new
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro tree /tree
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/tree,upperdir=/memory/upper,workdir=/memory/work root /root.new
mkdir -p /root.new/share
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /root.new/share
cp /check.service /root.new/etc/systemd/system/
mount -o move /dev /root.new/dev
umount /proc
exec switch_root /root.new /sbin/init
"""
CHECK = """[Unit]
After=basic.target
Requires=basic.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'bash /share/script >/share/said 2>&1; echo $? >/share/status; sync; systemctl poweroff --force --force'
"""
# What a guest of minutes has no use for.
MASKED = ("getty.target", "systemd-timesyncd.service", "systemd-logind.service", "systemd-update-utmp.service", "timers.target",
          "systemd-journal-flush.service", "systemd-random-seed.service", "systemd-pstore.service")
MAC = ("02:00:00:00:0a:01", "02:00:00:00:0a:02")


def image(programs):
    """(kernel, first files, the kernel's package) of `ktsn vm`."""
    done = subprocess.run([programs / "ktsn-bench", "vm", "image", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 3 and "cannot be fetched" in done.stderr:
        raise Skip("guest_packages_missing", done.stderr.strip())
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    directory = pathlib.Path(made["directory"])
    package, = (name for name in made["packages"] if name.startswith("linux-image-"))
    return directory / "kernel", directory / "files.cpio", directory.parent.parent / "packages" / package


def archive(folder, package):
    """What the guest begins with, besides the image's own files: a card with a clock, and the script that starts systemd."""
    with open(folder / "e1000e.ko", "wb") as module, subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked:
        subprocess.run(["tar", "-xO", "--wildcards", "*/e1000e.ko"], stdin=unpacked.stdout, stdout=module, check=True)
    (folder / "check.service").write_text(CHECK)
    (folder / "init").write_text(START)
    (folder / "init").chmod(0o755)
    return subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=folder, input=b"init\ncheck.service\ne1000e.ko\n",
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


def boot(tree, programs, shared, limit):
    """Runs `script` of the shared files under systemd in a guest of this tree: (exit status, what it printed). `limit`: seconds until the guest is stopped."""
    kernel, files, package = image(programs)
    with tempfile.TemporaryDirectory(prefix="ktsn-guest.") as scratch:
        scratch = pathlib.Path(scratch)
        share, made = scratch / "share", scratch / "made"
        share.mkdir()
        made.mkdir()
        for name, source in shared.items():
            shutil.copyfile(source, share / name)
        # The kernel reads one archive behind the other.
        (scratch / "files").write_bytes(files.read_bytes() + archive(made, package))
        words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "tsc=reliable", "net.ifnames=0",
                 "systemd.unit=check.service", "systemd.show_status=no", *(f"systemd.mask={name}" for name in MASKED)]
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-cpu", "max", "-smp", "2", "-m", "1024",
                "-accel", "tcg,thread=multi", "-serial", f"file:{scratch / 'console'}", "-kernel", kernel, "-initrd", scratch / "files",
                "-append", " ".join(words), "-device", "virtio-rng-pci"]
        for tag, path, more in (("tree", tree, ",readonly=on"), ("share", share, "")):
            argv += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}"]
        # Two cards with a wire between them.
        for number, (card, mac) in enumerate(zip(("e1000e", "virtio-net-pci"), MAC)):
            argv += ["-netdev", f"hubport,id=n{number},hubid=0", "-device", f"{card},netdev=n{number},mac={mac}"]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=limit, check=False)
            how = f"QEMU ended with status {done.returncode}: {done.stderr}"
        except subprocess.TimeoutExpired:
            how = f"stopped after {limit} s"
        console = (scratch / "console").read_text(errors="replace")[-3000:]
        said = (share / "said").read_text() if (share / "said").exists() else ""
        assert (share / "status").exists(), f"the guest has not said how its script ended; {how}\n{said}\n{console}"
        return int((share / "status").read_text()), said
