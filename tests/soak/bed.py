# SPDX-License-Identifier: Apache-2.0
"""Two hosts with pods, as tests/src/faults/bed.rs has them, and the programs that run there.

In: the directory of the built programs. Out: namespaces, a ktsnd that is started and ended, talkers, and what reaches host B.
Everything ends with this process, and `close` removes the rest.
"""

import ctypes
import errno
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import control

PODS = ("a", "b", "c")
UPLINK, FAR_POD, PORT = "uplink", "10.244.1.5", 7788
RUN_DIR_OCTETS = 4 << 20
ANSWER_MAX = 5.0
TAP_BUFFER = 64 << 20
SOURCE = pathlib.Path(__file__).resolve().parent.parent / "programs/faults_talker.c"
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, CLONE_NEWNET, SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS, ETH_P_ALL = 1, 0x40000000, 33, 263, 6, 3
OUTGOING = 4


class Hang(Exception):
    """A request was not answered twice in a row, or something did not end."""


def run(*commands):
    """Runs command lines, one after the other."""
    for line in commands:
        subprocess.run(line.split(), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=30)


def eventually(what, seconds, done, state=lambda: ""):
    """What `done` answers as soon as that is true; else a hang, with the `state` that it found."""
    end = time.monotonic() + seconds
    while not (answer := done()):
        if time.monotonic() > end:
            raise Hang(f"{what}: not within {seconds} s{state()}")
        time.sleep(0.01)
    return answer


def _dies_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Bed:
    """The namespaces, the run directory on its small tmpfs, and the programs."""

    def __init__(self, binaries, older=None):
        self.binaries = pathlib.Path(binaries).resolve()
        # Programs take turns with these.
        self.libraries = [place / "libktsn.so" for place in (self.binaries, older) if place]
        self.stem = f"ktsns{os.getpid()}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="ktsn-soak-"))
        self.run_dir = self.directory / "run"
        self.talker = self.directory / "talker"
        self.namespaces = []

    def open(self):
        """Sets everything up."""
        # Whatever else writes to the disk, no record and no log line waits for it.
        run(f"mount -t tmpfs -o mode=755 ktsn-soak {self.directory}")
        run(f"gcc -std=gnu11 -O1 -o {self.talker} {SOURCE}")
        self.run_dir.mkdir()
        run(f"mount -t tmpfs -o size={RUN_DIR_OCTETS},mode=755 ktsn-soak {self.run_dir}")
        a, b = (self._namespace(name) for name in ("ha", "hb"))
        run(f"ip -n {a} link add {UPLINK} address 02:00:00:00:00:01 type veth peer name {UPLINK} address 02:00:00:00:00:02 netns {b}")
        for host, n, m in ((a, 0, 1), (b, 1, 0)):
            self._host(host, n, m)
        self._pod(b, self._namespace("far"), 1, 5)
        for name in PODS:
            self.add_pod(name)

    def close(self):
        """Removes everything; nothing of it may fail for what comes behind it."""
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
        for mounted in (self.run_dir, self.directory):
            subprocess.run(["umount", "-l", mounted], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def of(self, name):
        """The whole name of a namespace."""
        return self.stem + name

    def _namespace(self, name):
        name = self.of(name)
        run(f"ip netns add {name}")
        if name not in self.namespaces:
            self.namespaces.append(name)
        run(f"ip -n {name} link set lo up")
        return name

    def _host(self, host, n, m):
        local, remote = n + 1, m + 1
        run(f"ip -n {host} link add cni0 type bridge", f"ip -n {host} link set cni0 mtu 1450 up", f"ip -n {host} addr add 10.244.{n}.1/24 dev cni0",
            f"ip netns exec {host} sysctl -qw net.ipv4.ip_forward=1")
        self.uplink_up(host, n)
        run(f"ip -n {host} link add flannel.1 address 02:00:00:00:01:0{local} mtu 1450 type vxlan id 1 local 192.168.50.{local} dev {UPLINK} "
            "dstport 8472 nolearning", f"ip -n {host} addr add 10.244.{n}.0/32 dev flannel.1", f"ip -n {host} link set flannel.1 up",
            f"ip -n {host} neigh add 10.244.{m}.0 lladdr 02:00:00:00:01:0{remote} dev flannel.1 nud permanent",
            f"ip -n {host} route add 10.244.{m}.0/24 via 10.244.{m}.0 dev flannel.1 onlink",
            f"bridge -n {host} fdb add 02:00:00:00:01:0{remote} dev flannel.1 dst 192.168.50.{remote}")

    def uplink_up(self, host, n):
        """The uplink with its address and its neighbour, also after it was down."""
        run(f"ip -n {host} link set {UPLINK} up", f"ip -n {host} addr replace 192.168.50.{n + 1}/24 dev {UPLINK}",
            f"ip -n {host} neigh replace 192.168.50.{2 - n} lladdr 02:00:00:00:00:0{2 - n} dev {UPLINK} nud permanent")

    def link_down(self):
        """Host A's uplink goes down."""
        run(f"ip -n {self.of('ha')} link set {UPLINK} down")

    def link_up(self):
        """It comes back, with the route that went with it."""
        self.uplink_up(self.of("ha"), 0)
        run(f"ip -n {self.of('ha')} route replace 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink")

    def _pod(self, host, pod, n, last):
        run(f"ip -n {host} link add pod{last} mtu 1450 type veth peer name eth0 netns {pod}", f"ip -n {host} link set pod{last} master cni0 up",
            f"ip -n {pod} link set eth0 mtu 1450 up", f"ip -n {pod} addr add 10.244.{n}.{last}/24 brd + dev eth0",
            f"ip -n {pod} route add default via 10.244.{n}.1")

    def add_pod(self, name):
        """A pod of host A."""
        self._pod(self.of("ha"), self._namespace(f"p{name}"), 0, 10 + PODS.index(name))

    def delete_pod(self, name):
        """Deletes its namespace, as a container runtime does. Its host's end goes when nothing holds the namespace."""
        run(f"ip netns del {self.of('p' + name)}")
        end = f"pod{10 + PODS.index(name)}"
        known = ["ip", "-n", self.of("ha"), "link", "show", end]
        eventually(f"{end} goes with its namespace", 20, lambda: subprocess.run(known, capture_output=True, check=False).returncode)

    def attachment(self, name):
        """The encoded request that attaches a pod."""
        peer = {"prefix": "10.244.1.0/24", "vtep": "192.168.50.2", "mac": "02:00:00:00:01:02"}
        whole = {"name": name, "netns": self.of("p" + name), "interface": "eth0", "uplink": UPLINK, "late": "send", "overrun_limit": "10s",
                 "overlay": {"vxlan": {"local": "192.168.50.1", "peers": [peer]}}}
        if name == PODS[1]:  # so that there are bpf objects
            whole["ingress"] = "short"
        return control.text(2, json.dumps(whole))

    def links(self):
        """Lines of host A's devices."""
        command = ["ip", "-n", self.of("ha"), "-o", "link"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def spaces(self):
        """Namespaces of this run."""
        return sorted(name for name in os.listdir("/run/netns") if name.startswith(self.stem))

    def files(self):
        """Everything in the run directory, but the counters that one ktsnd leaves to the next: an older one leaves them there."""
        return sorted(str(path.relative_to(self.run_dir)) for path in self.run_dir.rglob("*") if path.name != "counters.json")

    def spawn(self, namespace, command, **more):
        """Starts a program inside a namespace; it has the process number of the child."""
        whole = ["nsenter", f"--net=/run/netns/{self.of(namespace)}", "--", *map(str, command)]
        return subprocess.Popen(whole, stdin=subprocess.DEVNULL, preexec_fn=_dies_with_us, **more)  # noqa: PLW1509

    def talk(self, pod, sender, keys):
        """Starts a talker under libktsn."""
        library = self.libraries[sender % len(self.libraries)]
        environment = dict(os.environ, LD_PRELOAD=str(library), KTSN_RUN_DIR=str(self.run_dir), KTSN_POLICY="strict",
                           KTSN_LOG="off")
        command = [self.talker, FAR_POD, PORT, f"sender={sender}", f"record={self.directory}/{sender}", *keys]
        return self.spawn("p" + pod, ["env", *(f"{key}={environment[key]}" for key in ("LD_PRELOAD", "KTSN_RUN_DIR", "KTSN_POLICY", "KTSN_LOG")),
                                      *command], stdout=subprocess.DEVNULL)


class Daemon:
    """ktsnd on host A."""

    def __init__(self, bed, programs):
        self.bed, self.programs, self.turn, self.process = bed, programs, 0, None
        self.objects, self.starts, self.resident_max, self.unanswered = set(), 0, 0, 0
        self.log = bed.directory / "ktsnd.log"
        (bed.directory / "ktsnd.toml").write_text(f'[[port]]\ndevice = "{UPLINK}"\npriority = 0\n')

    def start(self):
        """Starts it and waits until it serves; the milliseconds that took."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            command = [self.programs[self.turn], "--config", self.bed.directory / "ktsnd.toml", "--run-dir", self.bed.run_dir]
            self.process = self.bed.spawn("ha", command, stdout=subprocess.DEVNULL, stderr=log, env=dict(os.environ, NO_COLOR="1"))
        self.starts += 1

        def serves():
            if self.process.poll() is not None:
                raise RuntimeError(f"ktsnd ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            try:
                return (self.bed.run_dir / "ktsnd.sock").exists() and self._asked()
            except subprocess.TimeoutExpired:
                self.unanswered += 1
                return False
        eventually("ktsnd serves", 2 * ANSWER_MAX, serves)
        return (time.monotonic() - began) * 1e3

    def _asked(self):
        done = subprocess.run([self.bed.binaries / "ktsn", "status", "--json", "--run-dir", self.bed.run_dir], capture_output=True,
                              timeout=ANSWER_MAX, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def status(self):
        """What it says of itself. A second silence of 5 s in a row is a hang."""
        for _ in range(2):
            try:
                if answer := self._asked():
                    return answer
            except subprocess.TimeoutExpired:
                pass
            self.unanswered += 1
        raise Hang("ktsnd did not answer `ktsn status` twice in a row")

    def call(self, method, message):
        """True: done, False: refused."""
        for _ in range(2):
            try:
                return control.call(self.bed.run_dir, method, message)
            except OSError:
                self.unanswered += 1
        raise Hang(f"ktsnd did not answer {method} twice in a row")

    def kill(self):
        """SIGKILL; it is gone when this returns."""
        self.look()
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """SIGTERM; it must drain and end with 0."""
        self.look()
        self.process.terminate()
        try:
            code = self.process.wait(4 * ANSWER_MAX)
        except subprocess.TimeoutExpired:
            raise Hang("ktsnd did not end after SIGTERM") from None
        if code:
            raise RuntimeError(f"ktsnd ended with {code} after SIGTERM")

    def descriptors(self):
        """Number of its descriptors, by what they are."""
        return descriptors(self.process.pid)

    def resident_kib(self):
        """Its resident memory."""
        return resident_kib(self.process.pid)

    def look(self):
        """Notes its memory and its bpf objects."""
        self.resident_max = max(self.resident_max, self.resident_kib())
        for path in pathlib.Path(f"/proc/{self.process.pid}/fdinfo").iterdir():
            try:
                lines = path.read_text().splitlines()
            except OSError:  # closed meanwhile
                continue
            for line in lines:
                kind, _, value = line.partition(":")
                if kind in ("prog_id", "map_id", "link_id"):
                    self.objects.add((kind.removesuffix("_id"), int(value)))

    def objects_left(self):
        """Of its bpf objects those that the kernel still knows."""
        known = (["bpftool", kind, "show", "id", str(value)] for kind, value in sorted(self.objects))
        return [" ".join(command[1:]) for command in known if subprocess.run(command, capture_output=True, check=False).returncode == 0]


def descriptors(pid):
    """Number of a process's descriptors, by what they are."""
    kinds = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind = os.readlink(entry).split(":")[0].split("[")[0]
        except OSError:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def resident_kib(pid):
    """A process's resident memory."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def ring_mappings(pid):
    """How many regions of ktsnd a process has mapped."""
    return pathlib.Path(f"/proc/{pid}/maps").read_text().count("memfd:ktsn-ring")


class Tap(threading.Thread):
    """Every marked frame that reaches host B's uplink, by sender."""

    def __init__(self, bed, lose):
        super().__init__(daemon=True)
        self.lose = lose
        self.heard, self.twice, self.early, self.frames, self.stop = {}, 0, 0, 0, False  # heard: per sender a flag for each sequence
        opened = threading.Thread(target=self._open, args=(bed,))
        opened.start()
        opened.join()

    def _open(self, bed):
        def enter(name):
            with open(f"/run/netns/{bed.of(name)}", "rb") as place:
                if LIBC.setns(place.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
        enter("hb")
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, TAP_BUFFER)
        self.socket.bind((UPLINK, ETH_P_ALL))
        self.socket.settimeout(0.1)
        enter("far")
        # Nothing reads it: it only spares an ICMP for each datagram.
        self.sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sink.bind((FAR_POD, PORT))

    def run(self):
        while not self.stop:
            try:
                frame, address = self.socket.recvfrom(2048)
            except TimeoutError:
                continue
            except OSError as error:
                # Told once after each time that the interface went down.
                if error.errno != errno.ENETDOWN:
                    raise
                continue
            at = frame.find(b"KTSF")
            if at < 0 or address[2] == OUTGOING:
                continue
            sender, sequence, tx_time = struct.unpack_from("=IQQ", frame, at + 4)
            self.frames += 1
            if self.lose and self.frames % self.lose == 0:
                continue
            heard = self.heard.setdefault(sender, bytearray())
            if sequence >= len(heard):
                heard.extend(bytes(sequence + 4096 - len(heard)))
            self.twice += heard[sequence]
            self.early += time.clock_gettime_ns(time.CLOCK_TAI) < tx_time
            heard[sequence] = 1

    def lost(self):
        """Frames that its own buffer could not take, since it was asked last."""
        return struct.unpack("=II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
