# SPDX-License-Identifier: Apache-2.0
"""What is done to KTSN, one thing at a time, each followed by a look that all is served again.

In: a bed with traffic, and a seeded source of randomness. Out: counts by kind; `Hang` where something does not come back.
"""

import errno
import os
import pathlib
import signal
import time

import control
from bed import ANSWER_MAX, PODS, descriptors, eventually, resident_kib, ring_mappings
from ledger import Ledger, Program

ATTACHED_MAX = 10.0
PERIOD_US = 5000
RECORDS = 10_000_000


class Soak:
    """The traffic and the actions."""

    # How often each is chosen, of the sum.
    WEIGHTS = {"kill_program": 10, "kill_ktsnd": 5, "kill_both": 3, "link_flap": 3, "flood": 3, "detach_attach": 2, "delete_namespace": 2,
               "disk_full": 2, "upgrade_or_rollback": 2}

    def __init__(self, bed, daemon, tap, random, only=()):
        self.weights = {name: weight for name, weight in self.WEIGHTS.items() if not only or name in only}
        self.bed, self.daemon, self.random, self.ledger = bed, daemon, random, Ledger(tap)
        self.kept_life = None  # the start of ktsnd whose counters the next one will go on with
        self.counts, self.kills, self.findings, self.served_ms, self.senders, self.timeline = {}, 0, [], [], 0, []

    def begin(self):
        """Attaches the pods; one lasting and one mortal program in each."""
        for pod in PODS:
            if not self._attach(pod):
                raise RuntimeError(f"Attach {pod} was refused")
            self._program(pod, "lasting")
            self._program(pod, "mortal")
        self.settle()

    def step(self):
        """One action, drawn by weight; its name."""
        name = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        began = time.monotonic_ns()
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, name)()
        self.settle()
        self.timeline.append({"began": began, "ended": time.monotonic_ns(), "action": name, "dropped": self.ledger.dropped(),
                              "absent": self.ledger.absent()})
        return name

    def settle(self):
        """Everything that lives is attached to the ktsnd of now. A program that ended by itself, other than a flood, is a finding."""
        for program in list(self.ledger.living):
            if program.process.poll() is not None:
                if program.kind != "flood" or program.process.returncode:
                    self.findings.append(f"program {program.sender} ({program.kind}) ended with {program.process.returncode}")
                    self._program(program.pod, program.kind)
                self.ledger.end(program)
        eventually("all programs are attached", ATTACHED_MAX, self._all_attached, self._attached)

    def _attached(self):
        """Each living program, for a hang: which start of ktsnd its region is of, and what its process does."""
        status = self._status()
        clients = {client["pid"] for of in status["attachments"] for client in of["clients"]}
        lines = [f"; start {self.daemon.starts} of ktsnd"]
        for program in self.ledger.living:
            pid = program.process.pid
            wait, stat = (self._read(f"/proc/{pid}/{name}") for name in ("wchan", "stat"))
            lines.append(f"program {program.sender} ({program.kind}, pod {program.pod}): region of start {program.life()}, "
                         f"{'a client' if pid in clients else 'no client'}, state {stat.rpartition(') ')[2][:1]}, in {wait}")
        return "; ".join(lines)

    @staticmethod
    def _read(path):
        try:
            return pathlib.Path(path).read_text()
        except OSError as error:
            return error.strerror

    def _all_attached(self):
        for program in self.ledger.living:
            program.scan(self.daemon.starts)
        waiting = [one for one in self.ledger.living if one.kind != "flood" and one.process.poll() is None]
        # A region that nothing here has mapped would take its counters along when its attachment goes again.
        if not all(program.is_served(self.daemon.starts) for program in waiting):
            return False
        status = self._status()
        clients = {client["pid"] for of in status["attachments"] for client in of["clients"]}
        return all(program.process.pid in clients for program in waiting)

    def _status(self):
        status = self.daemon.status()
        self.ledger.note_drops(self.daemon.starts, status["statistics"])
        bugs = {key: sum(of[key] for of in status["statistics"]["workers"]) for key in ("bugs", "regions_retired")}
        if any(bugs.values()):
            self.findings.append(f"worker: {bugs}")
        return status

    def _program(self, pod, kind, *keys):
        self.senders += 1
        keys = keys or (f"count={RECORDS}", f"period_us={PERIOD_US}", f"lead_us={self.random.choice((2000, 20000, 100000))}")
        process = self.bed.talk(pod, self.senders, keys)
        program = Program(process, pod, self.senders, self.bed.directory / str(self.senders), kind)
        eventually("a program starts", ATTACHED_MAX, lambda: program.path.exists() or process.poll() is not None)
        self.ledger.living.append(program)

    def _kill(self, program):
        """SIGKILL at an instant of no importance; it stands still before, so that its last region is seen."""
        program.process.send_signal(signal.SIGSTOP)
        program.scan(self.daemon.starts)
        program.never_attached = not program.life()
        program.process.kill()
        program.process.wait()
        self.ledger.end(program)
        self.kills += 1

    def _pause(self, most):
        time.sleep(self.random.random() * most)

    def _attach(self, pod):
        return self.daemon.call("Attach", self.bed.attachment(pod))

    def _kill_ktsnd(self):
        self._status()  # what it has counted goes with it
        for program in self.ledger.living:
            program.scan(self.daemon.starts)
        self.ledger.end_life(self.daemon.starts)
        self.daemon.kill()
        self.kills += 1

    def _start_ktsnd(self):
        self.served_ms.append(self.daemon.start())
        # An older ktsnd leaves the file where it is, and the one after that discards it.
        if self.kept_life == self.daemon.starts - 1 and not (self.bed.run_dir / "counters.json").exists():
            self.ledger.goes_on(self.kept_life)
        self.kept_life = None
        self._attach_missing(f"ktsnd {self.daemon.programs[self.daemon.turn].name} started again")

    def _attach_missing(self, finding):
        """Attachments that are not there are attached; with `finding`, each is one."""
        attached = {of["name"] for of in self._status()["attachments"]}
        for pod in [pod for pod in PODS if pod not in attached]:
            if finding:
                self.findings.append(f"{finding}: attachment {pod} is lost")
            self._attach(pod)

    def kill_program(self):
        """A mortal program is killed; another one begins."""
        program = self.random.choice([one for one in self.ledger.living if one.kind == "mortal"])
        self._kill(program)
        self._program(program.pod, "mortal")

    def kill_ktsnd(self):
        """ktsnd is killed, and started after up to half a second."""
        self._kill_ktsnd()
        self._pause(0.5)
        self._start_ktsnd()

    def kill_both(self):
        """A program is killed while no ktsnd is there: no process can count what it had queued."""
        self._kill_ktsnd()
        self._pause(0.5)
        self.kill_program()
        self._start_ktsnd()

    def upgrade_or_rollback(self):
        """The other ktsnd takes over what this one leaves, in order or not."""
        if self.random.random() < 0.5:
            self._kill_ktsnd()
        else:
            self._status()
            for program in self.ledger.living:
                program.scan(self.daemon.starts)
            self.ledger.end_life(self.daemon.starts)
            kept = self.bed.run_dir / "counters.json"
            was_there = kept.exists()  # an older ktsnd leaves one as it was
            self.daemon.terminate()
            if kept.exists() and not was_there:
                self.kept_life = self.daemon.starts
        self.daemon.turn = 1 - self.daemon.turn
        self._start_ktsnd()

    def link_flap(self):
        """Host A's uplink goes down for up to half a second."""
        self.bed.link_down()
        self._pause(0.5)
        self.bed.link_up()
        eventually("the port is up", ATTACHED_MAX, lambda: all(port["up"] for port in self._status()["ports"]))
        eventually("drops end with the fault", ATTACHED_MAX, self._drops_ended)

    def _drops_ended(self):
        """A ktsnd that were killed before that would take counts along that nothing else has."""
        self._status()
        before = self.ledger.dropped()
        time.sleep(0.15)
        self._status()
        return self.ledger.dropped() == before

    def flood(self):
        """One more program fills its ring at once; it ends, or is killed, before its frames have left."""
        self._program(self.random.choice(PODS), "flood", "count=3000", "burst=1", "nonblock=1", "period_us=500", "lead_us=100000",
                      f"hold_ms={self.random.randrange(500, 1500)}")
        program, is_killed = self.ledger.living[-1], self.random.random() < 0.5
        if not is_killed:
            # It holds long enough for its region to be seen here, on a busy machine too.
            eventually("a flood is served, or ended", ATTACHED_MAX, lambda: self._has_region(program) or program.process.poll() is not None)
        self._pause(0.02 if is_killed else 0.5)  # in the midst of its sends
        if is_killed and program.process.poll() is None:
            self._kill(program)

    def _has_region(self, program):
        program.scan(self.daemon.starts)
        return bool(program.regions)

    def detach_attach(self):
        """A pod's attachment goes for a moment, its programs stay."""
        pod = self.random.choice(PODS)
        if not self.daemon.call("Detach", control.text(1, pod)):
            self.findings.append(f"Detach {pod} was refused")
        self._pause(0.3)
        if not self._attach(pod):
            self.findings.append(f"Attach {pod} was refused")

    def delete_namespace(self):
        """A pod ends as with a container runtime: its programs are killed, its namespace goes; another one of its name comes."""
        pod = self.random.choice(PODS[1:])
        for program in [one for one in self.ledger.living if one.pod == pod]:
            self._kill(program)
        self.bed.delete_pod(pod)
        gone = eventually("the attachment is gone", ATTACHED_MAX,
                          lambda: pod not in [of["name"] for of in self._status()["attachments"]])
        self.bed.add_pod(pod)
        if not (gone and self._attach(pod)):
            self.findings.append(f"Attach {pod} was refused after its namespace came back")
        self._program(pod, "lasting")
        self._program(pod, "mortal")

    def disk_full(self):
        """The run directory's file system is full while something else happens; whatever was refused is done after it."""
        filler = self.bed.run_dir / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        what = self.random.choice(("kill_ktsnd", "kill_program", "detach"))
        try:
            if what == "detach":
                pod = self.random.choice(PODS)
                self.daemon.call("Detach", control.text(1, pod))
                self._attach(pod)
            else:
                getattr(self, what)()
        finally:
            os.unlink(filler)
        self._attach_missing(None if what == "detach" else f"disk full, {what}")

    def resources(self):
        """What there is while all is attached and quiet. The lasting program of the first pod lives all the time."""
        lasting = next(one for one in self.ledger.living if one.kind == "lasting" and one.pod == PODS[0])
        names = [line.split(":")[1].split("@")[0].strip() for line in self.bed.links()]
        return {"ktsnd descriptors": self.daemon.descriptors(), "ktsnd resident KiB": self.daemon.resident_kib(),
                "program descriptors": descriptors(lasting.process.pid), "program resident KiB": resident_kib(lasting.process.pid),
                "program ring mappings": ring_mappings(lasting.process.pid),
                "devices of host A": sorted(names), "run directory": self.bed.files(), "namespaces": self.bed.spaces(),
                "ports": len(self._status()["ports"])}

    def finish(self):
        """All programs end, ktsnd drains."""
        eventually("floods end", 4 * ANSWER_MAX, lambda: all(one.process.poll() is not None for one in self.ledger.living if one.kind == "flood"))
        self.settle()
        for program in list(self.ledger.living):
            self._kill(program)
        time.sleep(2.5)  # what a flood queued
        self._status()
        eventually("no client is left", ATTACHED_MAX, lambda: not any(of["clients"] for of in self._status()["attachments"]))
        left = self.daemon.descriptors()
        self.daemon.terminate()
        return left
