# SPDX-License-Identifier: Apache-2.0
"""Where each frame is: what programs sent, what arrived, and what each loss is counted as.

In: the talkers' records (one word for each datagram, readable after a kill), the tap, the programs' shared regions, which are kept
mapped here until their frames are settled, and ktsnd's counters. Out: frames by fate, and those that no counter explains.

    taken by the library = arrived
                         + daemon_absent (counter of the program's regions)
                         + untold        (killed before libktsn could count: slots never given back by the last ktsnd that it had, which
                                          is dead, and sends since that one went which reached no region)
                         + drops by reason (the last Statistics of each ktsnd)
    Each start of ktsnd accounts for its own: what an earlier one left, libktsn has counted by the time that the program has a region of
    a later one. One frame in the send call at each kill of a program, and one in the hand-over at each kill of ktsnd, may be on either
    side.
"""

import mmap
import os
import pathlib
import struct
import time

SLOTS_COUNT_AT, STATE_AT, COUNTERS_AT, FREE_AT, FREE_OCTETS = 16, 64, 256, 512, 512
DAEMON_ABSENT, PUBLISHED = 16, 18
IN_CALL, TAKEN, FAILED = 1, 2, 3
SETTLED_NS = 6_000_000_000


class Region:
    """A program's shared memory, which outlives the program here. `life`: which start of ktsnd made it."""

    def __init__(self, path, life):
        descriptor = os.open(path, os.O_RDONLY)
        self.memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        self.inode = os.fstat(descriptor).st_ino
        os.close(descriptor)
        self.life = life

    def counter(self, number):
        """One of the program's own counters."""
        return struct.unpack_from("<Q", self.memory, COUNTERS_AT + 8 * number)[0]

    def is_attached(self):
        """Whether ktsnd still reads it: one of an attachment that went is not."""
        return struct.unpack_from("<I", self.memory, STATE_AT)[0] == 0

    def kept(self):
        """Slots that are not free: they were not given back."""
        free = int.from_bytes(self.memory[FREE_AT:FREE_AT + FREE_OCTETS], "little").bit_count()
        return struct.unpack_from("<I", self.memory, SLOTS_COUNT_AT)[0] - free


class Program:
    """One talker. What it counted in regions that have a successor is added up."""

    def __init__(self, process, pod, sender, path, kind):
        self.process, self.pod, self.sender, self.path, self.kind = process, pod, sender, pathlib.Path(path), kind
        self.regions, self.seen, self.folded = {}, set(), {"absent": 0, "published": 0}
        self.judged, self.taken, self.failed, self.in_call, self.missing = 0, 0, 0, 0, {}  # missing: when it was sent, by number
        # Without a region at its death, which was looked for: one that ends by itself may have had one that nothing saw.
        self.ended_at, self.untold, self.never_attached = None, 0, False
        # Since its last ktsnd went: when that was, its counters then, and what the library has taken since.
        self.gone_at, self.absent_then, self.published_then, self.taken_since = 0, 0, 0, 0

    def scan(self, life):
        """Maps regions that it has by now; those of a ktsnd before this one are added up once there is a newer one."""
        try:
            lines = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        except (OSError, ProcessLookupError):
            return
        for line in lines:
            if "memfd:ktsn-ring" not in line or int(line.split()[4]) in self.seen:
                continue
            inode = int(line.split()[4])
            first, last = (part.lstrip("0") for part in line.split()[0].split("-"))
            try:
                self.regions[inode] = Region(f"/proc/{self.process.pid}/map_files/{first}-{last}", life)
                self.seen.add(inode)
            except OSError:  # unmapped, or ended, meanwhile
                continue
        newest = max((region.life for region in self.regions.values()), default=0)
        # One from a detach has a successor of the same life.
        old = [inode for inode, region in self.regions.items() if region.life < newest] + list(self.regions)[:-1]
        for inode in dict.fromkeys(old):
            region = self.regions.pop(inode)
            self.folded["absent"] += region.counter(DAEMON_ABSENT)
            self.folded["published"] += region.counter(PUBLISHED)
            region.memory.close()

    def life(self):
        """Which start of ktsnd its newest region is of; 0 = it has none."""
        return max((region.life for region in self.regions.values()), default=0)

    def is_served(self, life):
        """Whether its newest region is of this start of ktsnd and of an attachment that is there: what it counts is seen."""
        newest = next(reversed(self.regions.values()), None)
        return newest is not None and newest.life == life and newest.is_attached()

    def absent(self):
        """daemon_absent, as its libktsn counted."""
        return self.folded["absent"] + sum(region.counter(DAEMON_ABSENT) for region in self.regions.values())

    def _published(self):
        return self.folded["published"] + sum(region.counter(PUBLISHED) for region in self.regions.values())

    def note_end(self, life):
        """This start of ktsnd goes now. One that never served this program, or has a successor, does not matter to it."""
        if self.life() == life:
            self.gone_at, self.taken_since = time.monotonic_ns(), 0
            self.absent_then, self.published_then = self.absent(), self._published()

    def judge(self, heard, before):
        """Reads its records of sends before that instant (CLOCK_MONOTONIC), and notes what has not arrived."""
        with self.path.open("rb") as file:
            file.seek(self.judged * 8)
            while word := file.read(8):
                at, outcome = divmod(int.from_bytes(word, "little"), 4)
                if not outcome or at >= before or (outcome == IN_CALL and self.ended_at is None):
                    break
                if outcome == TAKEN:
                    self.taken += 1
                elif outcome == FAILED:
                    self.failed += 1
                is_here = self.judged < len(heard) and heard[self.judged]
                is_taken = outcome == TAKEN or (outcome == IN_CALL and is_here)
                self.taken_since += is_taken and at >= self.gone_at
                if outcome == IN_CALL:
                    self.in_call += not is_here
                    self.taken += is_here
                elif outcome == TAKEN and not is_here:
                    self.missing[self.judged] = at
                self.judged += 1
        self.missing = {number: at for number, at in self.missing.items() if number >= len(heard) or not heard[number]}

    def close(self, dead_lives):
        """After its death: what it could count no more. `dead_lives`: starts of ktsnd that were killed."""
        life = self.life()
        if life in dead_lives or self.never_attached:
            kept = sum(region.kept() for region in self.regions.values() if region.life == life)
            elsewhere = self.taken_since - (self._published() - self.published_then)
            self.untold = max(0, elsewhere + kept - (self.absent() - self.absent_then))
        absent = self.absent()
        for region in self.regions.values():
            region.memory.close()
        self.regions, self.folded = {}, dict(self.folded, absent=absent)
        self.path.unlink(missing_ok=True)


class Ledger:
    """All programs, and the sums of those that are settled."""

    def __init__(self, tap):
        self.tap, self.living, self.ended = tap, [], []
        self.sums = {"programs": 0, "taken": 0, "refused": 0, "missing": 0, "daemon_absent": 0, "untold": 0, "in_call": 0}
        self.trace = []  # of each program: (when each missing frame was sent, daemon_absent, untold, pod)
        self.drops, self.dead_lives = {}, set()  # drops: by life, then by reason; dead_lives: those that went

    def end_life(self, life):
        """A start of ktsnd goes, now."""
        for program in [*self.living, *self.ended]:
            program.note_end(life)
        self.dead_lives.add(life)

    def note_drops(self, life, statistics):
        """The counters of this life of ktsnd, without what programs count themselves."""
        sums = {}
        for of in [*statistics["attachments"], statistics["detached"]]:
            for reason, count in of["dropped"].items():
                if reason != "daemon_absent":
                    sums[reason] = sums.get(reason, 0) + count
        self.drops[life] = sums

    def goes_on(self, life):
        """The next start of ktsnd counts on from where this one has ended."""
        self.drops.pop(life, None)

    def dropped(self):
        """Drops of all lives, by reason."""
        sums = {}
        for life in self.drops.values():
            for reason, count in life.items():
                sums[reason] = sums.get(reason, 0) + count
        return sums

    def absent(self):
        """daemon_absent of all programs so far."""
        return self.sums["daemon_absent"] + sum(program.absent() for program in [*self.living, *self.ended])

    def end(self, program):
        """It is dead: what it left is judged once its last frames have left."""
        program.ended_at = time.monotonic_ns()
        self.living.remove(program)
        self.ended.append(program)

    def settle(self, is_final=False):
        """Judges what is old enough; the sums of now."""
        now = time.monotonic_ns()
        for program in [*self.living, *self.ended]:
            program.judge(self.tap.heard.get(program.sender, b""), now if is_final else now - SETTLED_NS)
        for program in [one for one in self.ended if is_final or one.ended_at < now - SETTLED_NS]:
            program.judge(self.tap.heard.get(program.sender, b""), now)
            program.close(self.dead_lives)
            self.ended.remove(program)
            self.trace.append({"program": program.sender, "kind": program.kind, "pod": program.pod, "taken": program.taken, "absent": program.absent(),
                               "untold": program.untold, "in_call": program.in_call, "ended_at": program.ended_at, "missing_at": sorted(program.missing.values())})
            self.tap.heard.pop(program.sender, None)
            self._add(self.sums, program)
        sums = dict(self.sums)
        for program in [*self.living, *self.ended]:
            self._add(sums, program)
        return sums

    @staticmethod
    def _add(sums, program):
        sums["programs"] += 1
        sums["taken"] += program.taken
        sums["refused"] += program.failed
        sums["missing"] += len(program.missing)
        sums["daemon_absent"] += program.absent()
        sums["untold"] += program.untold
        sums["in_call"] += program.in_call

    def balance(self, sums):
        """(missing frames that nothing counted, counts beyond the missing frames)."""
        counted = sums["daemon_absent"] + sums["untold"] + sum(self.dropped().values())
        return max(0, sums["missing"] - counted), max(0, counted - sums["missing"])
