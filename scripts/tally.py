#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test results.

In: a directory with NAME.log (what `cargo test` or `go test -v` printed) and NAME.status (its exit status), and the list of
allowed skips. Out: results.json and closing.txt in that directory, and the closing line 'N passed, N failed, N skipped'.
Exit status 1 if anything failed, a suite ran nothing, or a skip is not on the list. Never: a pass by silence.
With --sum FILE…: the closing lines in these files, of several runs, as one; a file without one counts as a failure.
"""

import contextlib
import datetime
import io
import json
import pathlib
import re
import sys
import tempfile
import tomllib

RESULT = re.compile(r"^test (?P<name>.+?) \.\.\. (?P<outcome>ok|FAILED|ignored)(?:, (?P<reason>.*))?$")
SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
RUNNING = re.compile(r"^\s+(?:Running .*\(\S*?(?P<binary>[^/\s]+)-[0-9a-f]+\)|Doc-tests (?P<doc>\S+))$")
SKIP = re.compile(r"^\s*SKIP (?P<name>[^:\s]+(?:::[^:\s]+)*): (?P<reason>\S.*)$")
GO_RESULT = re.compile(r"^\s*--- (?P<outcome>PASS|FAIL|SKIP): (?P<name>\S+) \([\d.]+s\)$")
GO_SAID = re.compile(r"^\s+\S+\.go:\d+: (?P<text>\S.*)$")
GO_PACKAGE = re.compile(r"^(?:ok|FAIL)\s+(?P<package>\S+/\S+)\s+(?:[\d.]+s|\(cached\)|\[.*\])")


class Suite:
    """What one log says: counts from libtest's own summaries, names from its lines."""

    def __init__(self, name, text, status):
        self.name, self.status = name, status
        self.passed = self.failed = 0
        self.skips, self.checks = [], []
        place = ""
        go, said = [], ""
        for line in text.splitlines():
            if found := GO_RESULT.match(line):
                go.append((found["name"], found["outcome"], said))
            elif found := GO_PACKAGE.match(line):
                self.go_package(found["package"], go)
                go, said = [], ""
            elif found := GO_SAID.match(line):
                said = found["text"]
            elif found := RUNNING.match(line):
                place = found["binary"] or f"doc {found['doc']}"
            elif found := SUMMARY.match(line):
                self.passed += int(found[1])
                self.failed += int(found[2])
            elif found := RESULT.match(line):
                test = found["name"].removesuffix(" - should panic")
                outcome = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}[found["outcome"]]
                self.checks.append(check(f"{name}/{place}::{test}", outcome, found["reason"]))
                if outcome == "skipped":
                    self.skips.append((test, found["reason"] or "ignored", False))
            elif found := SKIP.match(line):
                self.checks.append(check(f"{name}/{place}::{found['name']}", "skipped", found["reason"]))
                self.skips.append((found["name"], found["reason"], True))
        self.go_package("go", go)  # a program that died before its package's line
        # libtest counts a test that printed SKIP as passed; it proved nothing.
        self.passed -= sum(1 for skip in self.skips if skip[2])
        if status != 0 and self.failed == 0:
            self.failed = 1
            self.checks.append(check(name, "failed", f"exit status {status}"))
        elif status == 0 and self.passed + len(self.skips) == 0:
            self.failed = 1
            self.checks.append(check(name, "failed", "ran no test"))

    def go_package(self, package, results):
        """Tests of a Go package. One with subtests counts by these alone, unless it failed and none of them did."""
        outcomes = {name: outcome for name, outcome, _ in results}
        for name, outcome, said in results:
            parts = [o for other, o in outcomes.items() if other.startswith(name + "/")]
            if parts and (outcome != "FAIL" or "FAIL" in parts):
                continue
            word = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[outcome]
            self.checks.append(check(f"{self.name}/{package}::{name}", word, said if outcome == "SKIP" else None))
            self.passed += outcome == "PASS"
            self.failed += outcome == "FAIL"
            if outcome == "SKIP":
                self.skips.append((name, said or "no reason", False))


def check(name, outcome, reason=None):
    """One entry of `checks` in ktsn.results/1."""
    return {"name": name, "outcome": outcome} | ({"reason": reason} if reason else {})


def allowed_skips(text):
    """(names on the list, faults of the list itself)."""
    names, faults = set(), []
    for index, entry in enumerate(tomllib.loads(text).get("skip", [])):
        if set(entry) != {"name", "reason", "since"} or not isinstance(entry["since"], datetime.date):
            faults.append(f"entry {index + 1} needs exactly name, reason and since (a date)")
        elif not entry["reason"].strip():
            faults.append(f"{entry['name']}: the reason is empty")
        else:
            names.add(entry["name"])
    return names, faults


def tally(suites, skips_text):
    """(passed, failed, skipped, checks, complaints)."""
    names, faults = allowed_skips(skips_text)
    complaints = [f"tests/skips.toml: {fault}" for fault in faults]
    complaints += [f"{suite.name}: {c['name']}: {c.get('reason', 'failed')}"
                   for suite in suites for c in suite.checks if c["outcome"] == "failed"]
    unlisted = sorted({(n, r) for suite in suites for n, r, _ in suite.skips if n not in names})
    complaints += [f"skip not on the list: {name}: {reason}" for name, reason in unlisted]
    failed = sum(s.failed for s in suites) + len(faults) + len(unlisted)
    return (sum(s.passed for s in suites), failed, sum(len(s.skips) for s in suites),
            [c for s in suites for c in s.checks], complaints)


def main(directory, skips_file):
    logs = sorted(directory.glob("*.log"))
    suites = [Suite(p.stem, p.read_text(errors="replace"), int(p.with_suffix(".status").read_text())) for p in logs]
    passed, failed, skipped, checks, complaints = tally(suites, skips_file.read_text())
    failed += not suites
    document = {"schema": "ktsn.results/1", "experiment": "test", "command": ["make", "test"], "checks": checks}
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    for complaint in complaints:
        print(f"FAILED {complaint}")
    closing = f"{passed} passed, {failed} failed, {skipped} skipped"
    (directory / "closing.txt").write_text(closing + "\n")
    print(closing)
    return 1 if failed else 0


CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


def total(files):
    """The closing lines of several runs as one line, and the exit status."""
    counts = [0, 0, 0]
    for file in files:
        lines = file.read_text().splitlines() if file.is_file() else []
        if found := CLOSING.match(lines[-1] if lines else ""):
            counts = [have + int(more) for have, more in zip(counts, found.groups())]
        else:
            print(f"FAILED {file}: no closing line: it was not run to its end")
            counts[1] += 1
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 1 if counts[1] or not files else 0


GOOD_LOG = """     Running unittests src/lib.rs (target/debug/deps/a_b-0123456789abcdef)
test tests::one ... ok
test tests::two - should panic ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
SKIP_LOG = GOOD_LOG + "---- tests::one stdout ----\nSKIP link::zero_copy: no such device\n"
IGNORED_LOG = """test slow ... ignored, takes a day
test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
FAILED_LOG = """test tests::one ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
GO_LOG = """=== RUN   TestOne
=== RUN   TestOne/first
=== RUN   TestOne/second
--- PASS: TestOne (0.01s)
    --- PASS: TestOne/first (0.00s)
    --- PASS: TestOne/second (0.00s)
PASS
ok  	ktsn.io/ktsn/k8s/internal/nodeapi	0.512s
"""
GO_SKIP_LOG = GO_LOG + """=== RUN   TestTwo
    two_test.go:7: no such device
--- SKIP: TestTwo (0.00s)
ok  	ktsn.io/ktsn/k8s/internal/other	(cached)
"""
GO_FAILED_LOG = GO_LOG.replace("--- PASS: TestOne/second", "--- FAIL: TestOne/second").replace(
    "--- PASS: TestOne (", "--- FAIL: TestOne (").replace("ok  ", "FAIL")
GO_DIED_LOG = "=== RUN   TestOne\n--- PASS: TestOne (0.01s)\npanic: oh\nFAIL	ktsn.io/ktsn/k8s/a	0.1s\nFAIL\n"
GO_BROKEN_LOG = GO_LOG + "FAIL	ktsn.io/ktsn/k8s/a [build failed]\nFAIL\n"
LISTED = '[[skip]]\nname = "link::zero_copy"\nreason = "veth has no zero-copy"\nsince = 2026-11-21\n'


def self_test():
    """Each kind of bad input must be counted as a failure, and good input must not."""
    cases = [  # text, status, list, (passed, failed, skipped)
        ("good", GOOD_LOG, 0, "", (2, 0, 0)),
        ("listed skip", SKIP_LOG, 0, LISTED, (1, 0, 1)),
        ("unlisted skip", SKIP_LOG, 0, "", (1, 1, 1)),
        ("unlisted ignored test", IGNORED_LOG, 0, "", (1, 1, 1)),
        ("failed test", FAILED_LOG, 101, "", (0, 1, 0)),
        ("does not compile", "error[E0425]: cannot find value\n", 101, "", (0, 1, 0)),
        ("ran nothing", "", 0, "", (0, 1, 0)),
        ("good Go", GO_LOG, 0, "", (2, 0, 0)),
        ("listed Go skip", GO_SKIP_LOG, 0, LISTED.replace("link::zero_copy", "TestTwo"), (2, 0, 1)),
        ("unlisted Go skip", GO_SKIP_LOG, 0, "", (2, 1, 1)),
        ("failed Go test", GO_FAILED_LOG, 1, "", (1, 1, 0)),
        ("Go test that died", GO_DIED_LOG, 1, "", (1, 1, 0)),
        ("Go does not compile", GO_BROKEN_LOG, 1, "", (2, 1, 0)),
        ("list without a reason", GOOD_LOG, 0, LISTED.replace("veth has no zero-copy", " "), (2, 1, 0)),
        ("list with a missing key", GOOD_LOG, 0, LISTED.replace("since = 2026-11-21\n", ""), (2, 1, 0)),
    ]
    for name, text, status, skips, expected in cases:
        found = tally([Suite("s", text, status)], skips)[:3]
        assert found == expected, f"tally self-test: {name}: expected {expected}, found {found}"
    named = Suite("s", GOOD_LOG, 0).checks[0]["name"]
    assert named == "s/a_b::tests::one", f"tally self-test: name: {named}"
    named = Suite("s", GO_SKIP_LOG, 0).checks[-1]
    assert named == check("s/ktsn.io/ktsn/k8s/internal/other::TestTwo", "skipped", "no such device"), f"tally self-test: {named}"
    with tempfile.TemporaryDirectory() as empty:
        skips = pathlib.Path(empty) / "skips.toml"
        skips.write_text("")
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(pathlib.Path(empty), skips)
        assert status == 1, "tally self-test: no suite at all must fail"
        one, two, cut = (pathlib.Path(empty) / name for name in ("one.txt", "two.txt", "cut.txt"))
        one.write_text("3 passed, 0 failed, 1 skipped\n")
        two.write_text("a table\n4 passed, 0 failed, 0 skipped\n")
        cut.write_text("4 passed, 0 failed, 0 skipped\nthe table")
        for files, expected in (([one, two], (0, "7 passed, 0 failed, 1 skipped")), ([one, skips], (1, "3 passed, 1 failed, 1 skipped")),
                                ([one, cut, one.with_name("none")], (1, "3 passed, 2 failed, 1 skipped"))):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                found = (total(files), said.getvalue().splitlines()[-1])
            assert found == expected, f"tally self-test: sum of {files}: expected {expected}, found {found}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    if sys.argv[1:2] == ["--sum"]:
        sys.exit(total([pathlib.Path(name) for name in sys.argv[2:]]))
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
