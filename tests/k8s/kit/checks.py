# SPDX-License-Identifier: Apache-2.0
"""Counts what was checked.

In: named steps. Out: a line for each on the terminal, the list `checks` of ktsn.results/1, the closing line. A step that
raises has failed, with the reason; what could not be tried is skipped, with the reason. Nothing passes by silence.
"""

import concurrent.futures
import pathlib
import sys
import time
import tomllib
import traceback


LISTED = pathlib.Path(__file__).resolve().parents[3] / "tests/skips.toml"


class Skip(Exception):
    """A check that cannot be made here: its name in tests/skips.toml, and why."""

    def __init__(self, name, reason):
        super().__init__(f"{name}: {reason}")
        self.name = name


def only(place, pattern):
    """The one file of a folder that `make package` made."""
    found = sorted(place.glob(pattern))
    assert len(found) == 1, f"{place} has {len(found)} files {pattern}: it is what `make package` makes"
    return found[0]


def tried(action, *arguments):
    """(what it returned or None, outcome, reason, seconds)."""
    begun, outcome, reason, value = time.monotonic(), "passed", "", None
    try:
        value = action(*arguments)
    except Skip as skip:
        listed = {entry["name"] for entry in tomllib.loads(LISTED.read_text())["skip"]}
        outcome, reason = ("skipped", str(skip)) if skip.name in listed else ("failed", f"skip not on the list: {skip}")
    except Exception as error:  # pylint: disable=broad-except  # whatever it is, it is this step's
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc(limit=-3, file=sys.stderr)
    return value, outcome, reason, time.monotonic() - begun


class Checks:
    """All steps of one run."""

    def __init__(self):
        self.done = []

    def step(self, name, action, *arguments):
        """Does one thing and keeps how it went; what it returned, or None."""
        value, *how = tried(action, *arguments)
        self.note(name, *how)
        return value

    def together(self, steps):
        """As `step`, for (name, action) that do not meet, side by side; kept in their order. What they returned."""
        at_once, values = concurrent.futures.ThreadPoolExecutor(len(steps)), []
        try:
            for name, one in [(name, at_once.submit(tried, action)) for name, action in steps]:
                value, *how = one.result()
                self.note(name, *how)
                values.append(value)
        finally:
            at_once.shutdown(wait=False)  # all have ended, or Ctrl-C: what they wait for goes with the cluster
        return values

    def note(self, name, outcome, reason="", seconds=0.0):
        self.done.append({"name": name, "outcome": outcome} | ({"reason": reason[:2000]} if reason else {}))
        said = {"passed": "ok    ", "failed": "FAILED", "skipped": "skip  "}[outcome]
        first = reason.splitlines()[0][:300] if reason else ""
        print(f"{said} {name} ({seconds:.1f} s){': ' + first if first else ''}", flush=True)
        if outcome == "skipped":
            print(f"SKIP {first}", flush=True)

    def count(self, outcome):
        return sum(check["outcome"] == outcome for check in self.done)

    def closing(self):
        """The line that ends the run."""
        return f"{self.count('passed')} passed, {self.count('failed')} failed, {self.count('skipped')} skipped"
