#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak's ledger over made-up regions and records: what a killed program could not count belongs to its last ktsnd alone."""

import pathlib
import struct
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from ledger import (COUNTERS_AT, DAEMON_ABSENT, FREE_AT, PUBLISHED, SLOTS_COUNT_AT, STATE_AT, TAKEN, Ledger, Program, Region)  # noqa: E402

SLOTS = 64


class Tap:
    """Nothing arrives."""

    def __init__(self):
        self.heard = {}


class Case(unittest.TestCase):
    """One program and its ktsnds."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.ledger = Ledger(Tap())
        records = pathlib.Path(self.directory.name) / "records"
        records.touch()
        self.program = Program(None, "pod", 1, records, "mortal")
        self.ledger.living.append(self.program)

    def tearDown(self):
        self.directory.cleanup()

    def region(self, life):
        """A region of this start of ktsnd; what was mapped before has a successor."""
        path = pathlib.Path(self.directory.name) / f"region{life}"
        path.write_bytes(bytes(4096))
        for old in self.program.regions.values():
            self.program.folded["absent"] += old.counter(DAEMON_ABSENT)
            self.program.folded["published"] += old.counter(PUBLISHED)
        self.program.regions = {life: Region(path, life)}
        self.write(life, 0, 0, 0)

    def write(self, life, absent, published, kept):
        """The counters of a region, and slots that were not given back."""
        with (pathlib.Path(self.directory.name) / f"region{life}").open("r+b") as file:
            for at, form, value in ((SLOTS_COUNT_AT, "<I", SLOTS), (COUNTERS_AT + 8 * DAEMON_ABSENT, "<Q", absent),
                                    (COUNTERS_AT + 8 * PUBLISHED, "<Q", published), (FREE_AT, "<Q", (1 << SLOTS - kept) - 1)):
                file.seek(at)
                file.write(struct.pack(form, value))

    def sends(self, count):
        """The library takes so many datagrams, now."""
        with self.program.path.open("ab") as file:
            for _ in range(count):
                file.write(struct.pack("<Q", time.monotonic_ns() * 4 + TAKEN))
                time.sleep(1e-6)

    def account(self):
        """The program is killed; the sums, and the frames that nothing counted."""
        if self.program in self.ledger.living:
            self.ledger.end(self.program)
        sums = self.ledger.settle(is_final=True)
        return sums["untold"], self.ledger.balance(sums)[0]

    def test_what_the_last_ktsnd_left_and_what_came_after_it(self):
        self.region(1)
        self.sends(10)
        self.write(1, 0, 10, 2)
        self.ledger.end_life(1)
        self.sends(3)
        # Nothing arrives here: the eight that ktsnd had taken have no account.
        self.assertEqual(self.account(), (5, 8))

    def test_what_libktsn_has_counted_is_not_counted_twice(self):
        self.region(1)
        self.sends(10)
        self.write(1, 0, 10, 2)
        self.ledger.end_life(1)
        self.sends(3)
        self.write(1, 3, 10, 2)
        self.assertEqual(self.account(), (2, 8))

    def test_frames_of_an_earlier_drain_are_not_hidden(self):
        self.region(1)
        self.sends(4)
        self.write(1, 0, 4, 4)
        self.ledger.end_life(1)
        # It has a region of the next one and has not counted what the drain left.
        self.region(2)
        self.ledger.end_life(2)
        self.assertEqual(self.account(), (0, 4))

    def test_frames_of_an_earlier_drain_that_were_counted_are_named(self):
        self.region(1)
        self.sends(4)
        self.write(1, 0, 4, 4)
        self.ledger.end_life(1)
        self.region(2)
        self.write(2, 4, 0, 0)
        self.ledger.end_life(2)
        self.sends(1)
        self.assertEqual(self.account(), (1, 0))

    def test_a_region_of_an_attachment_that_went_does_not_serve(self):
        self.assertFalse(self.program.is_served(1))
        self.region(1)
        self.assertTrue(self.program.is_served(1))
        self.assertFalse(self.program.is_served(2))
        with (pathlib.Path(self.directory.name) / "region1").open("r+b") as file:
            file.seek(STATE_AT)
            file.write(struct.pack("<I", 1))
        self.assertFalse(self.program.is_served(1))

    def test_a_program_that_never_had_a_region_has_told_nothing(self):
        self.sends(5)
        self.program.never_attached = True
        self.assertEqual(self.account(), (5, 0))

    def test_a_program_that_ended_unseen_has_no_excuse(self):
        self.sends(5)
        self.assertEqual(self.account(), (0, 5))

    def test_a_ktsnd_that_goes_after_the_program(self):
        self.region(1)
        self.sends(2)
        self.write(1, 0, 2, 2)
        self.ledger.end(self.program)
        self.ledger.end_life(1)
        self.assertEqual(self.account(), (2, 0))

    def test_a_ktsnd_that_lives_has_all(self):
        self.region(1)
        self.sends(2)
        self.write(1, 0, 2, 2)
        self.assertEqual(self.account(), (0, 2))

    def test_a_ktsnd_that_goes_while_the_program_waits_for_it_changes_nothing(self):
        self.region(1)
        self.sends(2)
        self.write(1, 0, 2, 2)
        self.ledger.end_life(1)
        self.sends(3)
        self.ledger.end_life(2)
        self.assertEqual(self.account(), (5, 0))


if __name__ == "__main__":
    unittest.main()
