# SPDX-License-Identifier: Apache-2.0
"""Counts what was checked.

In: named steps. Out: a line for each on the terminal, the list `checks` of ktsn.results/1, the closing line. A step that
raises has failed, with the reason; what could not be tried is skipped, with the reason. Nothing passes by silence.
"""

import sys
import time
import traceback


class Skip(Exception):
    """Why a check cannot be made here."""


class Checks:
    """All steps of one run."""

    def __init__(self):
        self.done = []

    def step(self, name, action, *arguments):
        """Does one thing and keeps how it went; what it returned, or None."""
        begun, outcome, reason, value = time.monotonic(), "passed", "", None
        try:
            value = action(*arguments)
        except Skip as skip:
            outcome, reason = "skipped", str(skip)
        except Exception as error:  # pylint: disable=broad-except  # whatever it is, it is this step's
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
            traceback.print_exc(limit=-3, file=sys.stderr)
        self.note(name, outcome, reason, time.monotonic() - begun)
        return value if outcome == "passed" else None

    def note(self, name, outcome, reason="", seconds=0.0):
        self.done.append({"name": name, "outcome": outcome} | ({"reason": reason[:2000]} if reason else {}))
        said = {"passed": "ok    ", "failed": "FAILED", "skipped": "skip  "}[outcome]
        first = reason.splitlines()[0][:300] if reason else ""
        print(f"{said} {name} ({seconds:.1f} s){': ' + first if first else ''}", flush=True)

    def count(self, outcome):
        return sum(check["outcome"] == outcome for check in self.done)

    def closing(self):
        """The line that ends the run."""
        return f"{self.count('passed')} passed, {self.count('failed')} failed, {self.count('skipped')} skipped"
