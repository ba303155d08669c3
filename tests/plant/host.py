# SPDX-License-Identifier: Apache-2.0
"""Hosts of the plant: guests of QEMU 11 with a real driver, on a switch.

In: the tree, a kernel and a card for each host, files to hand over. Out: hosts that run scripts and say what these printed. Everything
here is in namespaces of the program that runs it, and ends with it. QEMU interprets its instructions: nothing judges a time below 50 ms.
"""

import json
import pathlib
import shutil
import socket
import subprocess

from kit.space import until

SWITCH = "switch"
START = r"""#!/busybox sh
/busybox mount -t proc proc /proc
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /modules/order); do /busybox insmod /modules/$module || echo "insmod $module failed"; done
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro tree /tree
/busybox mount -t tmpfs memory /memory
/busybox mkdir /memory/upper /memory/work
/busybox mount -t overlay -o lowerdir=/tree,upperdir=/memory/upper,workdir=/memory/work root /root.new
/busybox mkdir -p /root.new/share
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /root.new/share
/busybox mount -o move /dev /root.new/dev
/busybox umount /proc
exec /busybox switch_root /root.new /bin/bash /share/first
"""
# The first process of a host: mounts, the drivers of its devices, then a script of /share after the other, each by itself.
FIRST = r"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mkdir -p /dev/pts /dev/shm /run/lock; mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm; mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug; mount -t tracefs trace /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf
hostname NAME; ip link set lo up; ulimit -l unlimited; sysctl -qw kernel.sched_rt_runtime_us=950000
modprobe -q -a $(cat /sys/bus/pci/devices/*/modalias /sys/bus/virtio/devices/*/modalias)
cd /root
echo up >/share/up
next=1
while :; do
    while [ ! -e /share/$next.sh ]; do sleep 0.2; done
    (setsid bash /share/$next.sh >/share/$next.out 2>&1 </dev/null; echo $? >/share/$next.new; mv /share/$next.new /share/$next.status) &
    next=$((next + 1))
done
"""
CARDS = {
    "igb": "igb,bus=port0,netdev=wire,mac={mac}",
    "e1000e": "e1000e,bus=port0,netdev=wire,mac={mac}",
    "virtio": "virtio-net-pci,bus=port0,netdev=wire,mac={mac},mq=on,vectors=10",
}
QUEUES = 4  # of a virtio card
# Drivers without which a host has no files, and what they need, in their order.
NEEDED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
BOOT_S = 240


def command(*argv, **more):
    """What it prints."""
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: exit status {done.returncode}: {done.stdout}"
    return done.stdout


def make_switch():
    """An Ethernet switch in the network namespace of this program. It hands on what PTP's peers ask each other (01-80-C2-00-00-0E)."""
    command("ip", "link", "add", SWITCH, "type", "bridge", "stp_state", "0", "mcast_snooping", "0", "group_fwd_mask", "0x4000")
    command("ip", "link", "set", SWITCH, "up")


def on(*cards):
    """Marks a scene of these cards alone."""
    def mark(scene):
        assert set(cards) <= set(CARDS), cards
        scene.cards = cards
        return scene
    return mark


def whole_only(scene):
    """Marks a scene of `--all` and `--only` alone: it takes minutes."""
    scene.whole_only = True
    return scene


class Failed(AssertionError):
    """A script of a host ended with another status than 0."""


class Job:
    """A script that runs in a host."""

    def __init__(self, host, number, script):
        self.host, self.number, self.script = host, number, script

    def said(self):
        """What it has printed so far."""
        path = self.host.share / f"{self.number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, seconds=120, check=True):
        """Waits for its end: what it printed; or with `check=False` (status, what it printed)."""
        status = self.host.share / f"{self.number}.status"
        until(lambda: self.host.runs() and status.exists(), seconds, lambda: f"{self.host.name}: the end of\n{self.script}\n{self.said()}")
        code = int(status.read_text())
        if not check:
            return code, self.said()
        if code != 0:
            raise Failed(f"{self.host.name}: exit status {code}:\n{self.script}\n{self.said()}")
        return self.said()


class Host:
    """One guest. `name` is its host name, too; its card is eth0, its address 10.0.0.`number`."""

    def __init__(self, tree, place, name, number, card, kernel):
        self.tree, self.name, self.number, self.card, self.kernel = tree, name, number, card, kernel
        self.place = place / name
        self.share = self.place / "share"
        self.share.mkdir(parents=True)
        self.mac = f"02:00:00:00:0b:{number:02x}"
        self.address = f"10.0.0.{number}"
        self.next, self.qemu = 1, None

    def start(self, files, smp=4, memory=1536, words=()):
        """Begins to boot. `files`: name -> path, what stands in the host's /share."""
        for name, source in files.items():
            shutil.copyfile(source, self.share / name)
        (self.share / "first").write_text(FIRST.replace("NAME", self.name))
        (self.place / "files").write_bytes(self.archive())
        many = f",queues={QUEUES}" if self.card == "virtio" else ""
        inside = pathlib.Path("/mnt") / self.name
        line = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "tsc=reliable", "net.ifnames=0", *words]
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-accel", "tcg,thread=multi",
                "-cpu", "max", "-smp", smp, "-m", memory, "-kernel", f"/kernels/{self.kernel}", "-initrd", inside / "files", "-append", " ".join(line),
                "-serial", f"file:{inside}/console", "-qmp", f"unix:{inside}/monitor,server=on,wait=off", "-device", "virtio-rng-pci",
                "-virtfs", "local,path=/mnt/tree,mount_tag=tree,security_model=none,multidevs=remap,readonly=on",
                "-virtfs", f"local,path={inside}/share,mount_tag=share,security_model=none,multidevs=remap",
                "-netdev", f"tap,id=wire,ifname={self.name},script=no,downscript=no{many}",
                "-device", "pcie-root-port,id=port0,slot=1,chassis=1", "-device", CARDS[self.card].format(mac=self.mac)]
        command("ip", "tuntap", "add", self.name, "mode", "tap", *(["multi_queue"] if many else []))
        command("ip", "link", "set", "dev", self.name, "master", SWITCH, "up")
        with open(self.place / "qemu.log", "w", encoding="utf-8") as log:
            self.qemu = subprocess.Popen(["chroot", str(self.tree), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def archive(self):
        """The files that the kernel begins with: busybox, the drivers below the first mount, and what they need."""
        made = self.place / "begin"
        for folder in ("modules", "proc", "dev", "tree", "memory", "root.new"):
            (made / folder).mkdir(parents=True)
        shutil.copyfile(self.tree / "bin/busybox", made / "busybox")
        (made / "init").write_text(START)
        for name in ("busybox", "init"):
            (made / name).chmod(0o755)
        version = (self.tree / f"kernels/{self.kernel}.version").read_text().strip()
        order = []
        for name in NEEDED:
            for line in command("chroot", self.tree, "modprobe", "--set-version", version, "--show-depends", name).splitlines():
                path = line.split()[1] if line.startswith("insmod ") else None
                if path and path not in order:
                    order.append(path)
        names = []
        for path in order:
            source = self.tree / path.lstrip("/")
            name = source.name.removesuffix(".xz").removesuffix(".zst")
            reader = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dqc"]}.get(source.suffix, ["cat"])
            with open(made / "modules" / name, "wb") as out:
                subprocess.run([*reader, source], stdout=out, check=True)
            names.append(name)
        (made / "modules/order").write_text("\n".join(names))
        listed = "".join(f"{path.relative_to(made)}\n" for path in sorted(made.rglob("*")))
        return subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=made, input=listed.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout

    def runs(self):
        """True, or an error if QEMU has ended."""
        if self.qemu.poll() is not None:
            raise AssertionError(f"{self.name}: QEMU ended with status {self.qemu.returncode}\n{self.last_words()}")
        return True

    def last_words(self):
        """What QEMU and the console said last."""
        paths = (self.place / "qemu.log", self.place / "console")
        return "\n".join(path.read_text(errors="replace")[-2500:] for path in paths if path.exists())

    def wait_until_up(self):
        """Waits until it takes scripts."""
        until(lambda: self.runs() and (self.share / "up").exists(), BOOT_S, lambda: f"{self.name}: it is up\n{self.last_words()}")

    def begin(self, script):
        """Starts a script of bash."""
        job = Job(self, self.next, script)
        written = self.share / "written"
        written.write_text(script + "\n")
        written.rename(self.share / f"{self.next}.sh")
        self.next += 1
        return job

    def run(self, script, seconds=120):
        """What a script printed; raises if it ends with another status than 0."""
        return self.begin(script).wait(seconds)

    def tried(self, script, seconds=120):
        """(exit status, what it printed)."""
        return self.begin(script).wait(seconds, check=False)

    def monitor(self, execute, **arguments):
        """One command of QEMU's machine protocol: what it returns."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(str(self.place / "monitor"))
            answers = peer.makefile("r")
            answers.readline()
            for line in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                peer.sendall(json.dumps(line).encode())
                while "event" in (answer := json.loads(answers.readline())):
                    pass
            assert "return" in answer, f"{self.name}: {execute}: {answer}"
            return answer["return"]
