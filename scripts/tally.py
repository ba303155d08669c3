#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows test runs and counts their results.

tally.py --read DIRECTORY/NAME: in: what `cargo test -- --show-output` or `go test -json` prints. Out: NAME.log, all of it as text;
NAME.json, its results; and at once what a person wants to see: each test program, its result, what it skipped, whatever a failed
test said, and all that is not a test's: warnings, compile errors.
tally.py --again DIRECTORY/NAME: out: the names of the failed tests, a line each; nothing where more than three failed, or something else.
tally.py DIRECTORY SKIPS: in: NAME.json and NAME.status (an exit status) of each suite, and the list of allowed skips. Out:
results.json and closing.txt in that directory, and the closing line 'N passed, N failed, N skipped'. Exit status 1 if anything
failed, a suite ran nothing, or a skip is not on the list. A test that failed in NAME and passed in each of NAME-alone1, 2, … is
unsteady: it has failed, and the line UNSTEADY shows its name and rate. Never: a pass by silence.
tally.py --sum FILE…: the closing lines in these files, of several runs, as one; a file without one counts as a failure.
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

RESULT = re.compile(r"^test (?P<name>.+?)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)(?:, (?P<reason>.*))?$")
SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;")
RUNNING = re.compile(r"^\s+(?:Running .*\(\S*?(?P<binary>[^/\s]+)-[0-9a-f]+\)|Doc-tests (?P<doc>\S+))$")
SKIP = re.compile(r"^\s*SKIP(?: (?P<name>[^:\s]+(?:::[^:\s]+)*))?: (?P<reason>\S.*)$")
DULL = re.compile(r"^(test .+ \.\.\. (ok|ignored.*)|running \d+ tests?|\s*)$")
LEFT_BEHIND = 99  # exit status of a suite whose tests left something behind
AGAIN_MAX = 3  # more failed tests are no matter of chance
ALONE = re.compile(r"^(?P<suite>.+)-alone\d+$")
GO_EVENT = ('{"Time":', '{"ImportPath":')
GO_SAID = re.compile(r"^\s+\S+\.go:\d+: (\S.*)$")
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


class Suite:
    """Reads what one suite prints: counts from libtest's own summaries, names from its lines."""

    def __init__(self, name, log=io.StringIO(), show=lambda line: None):
        self.name, self.log, self.show = name, log, show
        self.passed = self.failed = 0
        self.checks = []
        self.place, self.is_hidden = "", False  # is_hidden: in libtest's list of what passed tests have printed
        self.go_tests = {}  # Go package -> name -> (outcome, output): several packages run at a time

    def add(self, place, test, outcome, reason=None):
        self.checks.append(check(f"{self.name}/{place}::{test}", outcome, reason))

    def read(self, line):
        if line.startswith(GO_EVENT):
            self.read_go(json.loads(line))
        else:
            self.read_cargo(line)

    def read_cargo(self, line):
        print(line, file=self.log)
        if line.startswith(("successes:", "failures:", "test result:")):
            self.is_hidden = line == "successes:"
        if found := RESULT.match(line):
            self.add(self.place, found["name"], {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}[found["outcome"]],
                     found["reason"] or ("ignored" if found["outcome"] == "ignored" else None))
        elif found := RUNNING.match(line):
            self.place = found["binary"] or f"doc {found['doc']}"
        elif found := SUMMARY.match(line):
            self.passed += int(found[1])
            self.failed += int(found[2])
        elif found := SKIP.match(line):
            self.add(self.place, found["name"] or "a skip without name", "skipped", found["reason"])
            self.passed -= 1  # libtest counts a test that printed SKIP as passed; it proved nothing
        if SKIP.match(line) or not (self.is_hidden or DULL.match(line)):
            self.show(line)

    def read_go(self, event):
        """One event of test2json. A package's tests are counted and shown when it ends."""
        name, action, text = event.get("Test", ""), event["Action"], event.get("Output", "")
        self.log.write(text)
        tests = self.go_tests.setdefault(event.get("Package", ""), {})
        outcome, said = tests.get(name, ("run", ""))
        tests[name] = (action if action in ("pass", "fail", "skip") else outcome, said + text)
        if action == "build-output":
            self.show(text.rstrip("\n"))
        elif not name and action in ("pass", "fail", "skip"):
            self.end_package(event["Package"])

    def end_package(self, package):
        """A test with subtests counts by these alone, unless it failed and none of them did."""
        tests = self.go_tests.pop(package)
        _, last = tests.pop("", ("", ""))
        for name, (outcome, said) in tests.items():
            if outcome != "pass":
                for line in said.splitlines():
                    if not line.startswith("=== "):
                        self.show(line)
            parts = [part for other, (part, _) in tests.items() if other.startswith(name + "/")]
            if parts and (outcome == "pass" or "fail" in parts):
                continue
            reasons = [found[1] for line in said.splitlines() if (found := GO_SAID.match(line))]
            self.add(package, name, {"pass": "passed", "skip": "skipped"}.get(outcome, "failed"),
                     (reasons or ["no reason"])[-1] if outcome == "skip" else None)
            self.passed += outcome == "pass"
            self.failed += outcome not in ("pass", "skip")
        for line in last.splitlines():
            if line != "PASS":
                self.show(line)

    def results(self):
        return {"passed": self.passed, "failed": self.failed, "checks": self.checks}


def check(name, outcome, reason=None):
    """One entry of `checks` in ktsn.results/1."""
    return {"name": name, "outcome": outcome} | ({"reason": reason} if reason else {})


def judge(name, results, status):
    """A suite that ended with an error, left something behind or ran nothing, has failed."""
    what = None
    if status == LEFT_BEHIND:
        what = "left behind what the line 'leftovers: removed …' names"
    elif status != 0 and results["failed"] == 0:
        what = f"exit status {status}"
    elif status == 0 and not results["checks"] and results["passed"] == 0:
        what = "ran no test"
    if what:
        results["failed"] += 1
        results["checks"].append(check(name, "failed", what))
    return results


def again(results):
    """The names of failed tests that run some times more, alone."""
    names = [entry["name"].split("::", 1)[-1] for entry in results["checks"] if entry["outcome"] == "failed"]
    return names if len(names) == results["failed"] <= AGAIN_MAX else []


def join(results, alone):
    """The results of a suite: of each failed test that ran some times more, alone, how often it passed."""
    runs = [{entry["name"].split("/", 1)[1]: entry["outcome"] for entry in run["checks"] if "/" in entry["name"]} for run in alone]
    for entry in results["checks"]:
        name = entry["name"].split("/", 1)[-1]
        rates = [run[name] == "passed" for run in runs if name in run]
        if entry["outcome"] == "failed" and rates:
            entry["reason"] = f"failed beside other tests, passed {sum(rates)} of {len(rates)} times alone"
            if all(rates) and all(run["failed"] == 0 for run in alone):
                entry["unsteady"] = True
    return results


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
    checks = [entry for suite in suites for entry in suite["checks"]]
    skips = [(entry["name"].split("::", 1)[-1], entry["reason"]) for entry in checks if entry["outcome"] == "skipped"]
    unlisted = sorted({skip for skip in skips if skip[0] not in names})
    complaints = [f"FAILED tests/skips.toml: {fault}" for fault in faults]
    complaints += [f"{'UNSTEADY' if entry.get('unsteady') else 'FAILED'} {entry['name']}: {entry.get('reason', 'failed')}"
                   for entry in checks if entry["outcome"] == "failed"]
    complaints += [f"FAILED skip not on the list: {name}: {reason}" for name, reason in unlisted]
    failed = sum(suite["failed"] for suite in suites) + len(faults) + len(unlisted)
    return sum(suite["passed"] for suite in suites), failed, len(skips), checks, complaints


def results_in(file):
    return json.loads(file.read_text()) if file.is_file() else Suite("").results()


def main(directory, skips_file):
    ran = {path.stem: judge(path.stem, results_in(path.with_suffix(".json")), int(path.read_text())) for path in sorted(directory.glob("*.status"))}
    alone = {name: found["suite"] for name in ran if (found := ALONE.match(name))}
    suites = [join(results, [ran[one] for one, suite in alone.items() if suite == name]) for name, results in ran.items() if name not in alone]
    passed, failed, skipped, checks, complaints = tally(suites, skips_file.read_text())
    failed += not suites
    document = {"schema": "ktsn.results/1", "experiment": "test", "command": ["make", "test"], "checks": checks}
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    for complaint in complaints:
        print(complaint)
    closing = f"{passed} passed, {failed} failed, {skipped} skipped"
    (directory / "closing.txt").write_text(closing + "\n")
    print(closing)
    return 1 if failed else 0


def follow(place):
    """Reads standard input as the suite `place`."""
    sys.stdin.reconfigure(errors="replace")
    with place.with_suffix(".log").open("w") as log:
        suite = Suite(place.name, log, lambda line: print(line, flush=True))
        for line in sys.stdin:
            suite.read(line.rstrip("\n"))
    place.with_suffix(".json").write_text(json.dumps(suite.results()))


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


SUMMARIES = "test result: ok. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out; finished in 0.00s\n"
GOOD_LOG = """   Compiling a v0.1.0
     Running unittests src/lib.rs (target/debug/deps/a_b-0123456789abcdef)

running 2 tests
test tests::one ... ok
test tests::two - should panic ... ok

successes:

---- tests::one stdout ----
much
""" + SUMMARIES.format(2, 0, 0)
SKIP_LOG = GOOD_LOG.replace("much", "SKIP link::zero_copy: no such device")
IGNORED_LOG = "test slow ... ignored, takes a day\n" + SUMMARIES.format(1, 0, 1)
FAILED_LOG = "test tests::one ... FAILED\n\nfailures:\n\n---- tests::one stdout ----\nit broke\n" + SUMMARIES.format(0, 1, 0)


def go_log(*events, package="k8s/a"):
    """Lines of test2json from `ACTION [TEST [OUTPUT]]`."""
    split = (event.split(" ", 2) for event in events)
    return "".join(json.dumps({"Time": "now", "Action": action, "Package": package} | ({"Test": more[0]} if more and more[0] else {})
                              | ({"Output": more[1] + "\n"} if more[1:] else {})) + "\n" for action, *more in split)


GO_GOOD = ("run TestOne", "output TestOne === RUN   TestOne", "pass TestOne/first", "pass TestOne/second", "pass TestOne", "output  PASS")
GO_LOG = go_log(*GO_GOOD, "output  ok  \tk8s/a\t0.5s", "pass")
GO_SKIP_LOG = go_log(*GO_GOOD, "output TestTwo     two_test.go:7: no such device", "output TestTwo --- SKIP: TestTwo", "skip TestTwo", "pass")
GO_FAILED_LOG = go_log("pass TestOne/first", "output TestOne/second     a_test.go:9: it broke", "fail TestOne/second", "fail TestOne",
                       "output  FAIL\tk8s/a\t0.1s", "fail")
GO_DIED_LOG = go_log("pass TestOne", "run TestTwo", "output TestTwo panic: oh", "fail")
GO_BROKEN_LOG = GO_LOG + go_log("build-output  a.go:1: syntax error", "fail")
# Two packages at a time: the lines of the second one come while a test of the first one runs.
GO_BESIDE_LOG = (go_log("run TestOne") + go_log("run TestTwo", package="k8s/b") + go_log("pass TestOne", "pass")
                 + go_log("pass TestTwo", "pass", package="k8s/b"))
LISTED = '[[skip]]\nname = "link::zero_copy"\nreason = "veth has no zero-copy"\nsince = 2026-11-21\n'
CASES = [  # what, text, status, list of skips, (passed, failed, skipped), what is shown
    ("good", GOOD_LOG, 0, "", (2, 0, 0), ["   Compiling a v0.1.0", "     Running unittests src/lib.rs (target/debug/deps/a_b-0123456789abcdef)"]),
    ("listed skip", SKIP_LOG, 0, LISTED, (1, 0, 1), ["SKIP link::zero_copy: no such device"]),
    ("unlisted skip", SKIP_LOG, 0, "", (1, 1, 1), []),
    ("skip without name", GOOD_LOG.replace("much", "SKIP: no such device"), 0, LISTED, (1, 1, 1), []),
    ("unlisted ignored test", IGNORED_LOG, 0, "", (1, 1, 1), []),
    ("failed test", FAILED_LOG, 101, "", (0, 1, 0), ["test tests::one ... FAILED", "---- tests::one stdout ----", "it broke"]),
    ("does not compile", "error[E0425]: cannot find value\n", 101, "", (0, 1, 0), ["error[E0425]: cannot find value"]),
    ("ran nothing", "", 0, "", (0, 1, 0), []),
    ("good Go", GO_LOG, 0, "", (2, 0, 0), ["ok  \tk8s/a\t0.5s"]),
    ("Go packages side by side", GO_BESIDE_LOG, 0, "", (2, 0, 0), []),
    ("listed Go skip", GO_SKIP_LOG, 0, LISTED.replace("link::zero_copy", "TestTwo"), (2, 0, 1), ["    two_test.go:7: no such device"]),
    ("unlisted Go skip", GO_SKIP_LOG, 0, "", (2, 1, 1), []),
    ("failed Go test", GO_FAILED_LOG, 1, "", (1, 1, 0), ["    a_test.go:9: it broke", "FAIL\tk8s/a\t0.1s"]),
    ("Go test that died", GO_DIED_LOG, 1, "", (1, 1, 0), ["panic: oh"]),
    ("Go does not compile", GO_BROKEN_LOG, 1, "", (2, 1, 0), ["a.go:1: syntax error"]),
    ("list without a reason", GOOD_LOG, 0, LISTED.replace("veth has no zero-copy", " "), (2, 1, 0), []),
    ("list with a missing key", GOOD_LOG, 0, LISTED.replace("since = 2026-11-21\n", ""), (2, 1, 0), []),
]


def read(text, name="s"):
    suite = Suite(name)
    for line in text.splitlines():
        suite.read(line)
    return suite.results()


def self_test_again():
    """A few failed tests run five times more. Their rate is shown. A test that passed each time is unsteady, and has failed."""
    assert again(read(FAILED_LOG)) == ["tests::one"] and not again(read(GOOD_LOG)), "tally self-test: again"
    assert not again(read(FAILED_LOG * (AGAIN_MAX + 1))), "tally self-test: many failed"
    assert not again(read(SUMMARIES.format(0, 1, 0))), "tally self-test: a failure without a name"
    binary = "     Running unittests src/lib.rs (target/debug/deps/a_b-0123456789abcdef)\n"
    left = judge("s-alone1", read(GOOD_LOG, "s-alone1"), LEFT_BEHIND)
    for runs, expected in (([GOOD_LOG, GOOD_LOG], (1, "failed beside other tests, passed 2 of 2 times alone")),
                           ([binary + FAILED_LOG, GOOD_LOG], (1, "failed beside other tests, passed 1 of 2 times alone")),
                           ([binary + FAILED_LOG], (1, "failed beside other tests, passed 0 of 1 times alone")), ([], (1, None)), ([""], (1, None)),
                           ([GOOD_LOG.replace("a_b", "c")], (1, None)), ([left], (1, "failed beside other tests, passed 1 of 1 times alone"))):
        alone = [run if isinstance(run, dict) else judge("s-alone1", read(run, "s-alone1"), 0) for run in runs]
        joined = join(judge("s", read(binary + FAILED_LOG), 101), alone)
        entry = next(entry for entry in joined["checks"] if entry["name"] == "s/a_b::tests::one")
        assert (joined["failed"], entry.get("reason")) == expected, f"tally self-test: alone: {runs}: {joined}"
        is_unsteady = len(runs) == 2 and GOOD_LOG == runs[0]
        assert [line.split(" ", 1)[0] for line in tally([joined], "")[4]] == ["UNSTEADY" if is_unsteady else "FAILED"], "tally self-test: unsteady"
    assert ALONE.match("ovs-guests-alone3")["suite"] == "ovs-guests" and not ALONE.match("ovs-guests"), "tally self-test: names"


def self_test():
    """Each kind of bad input must be counted as a failure, good input must not, and a failure is shown whole."""
    for what, text, status, skips, expected, visible in CASES:
        shown = []
        suite = Suite("s", show=shown.append)
        for line in text.splitlines():
            suite.read(line)
        names = [entry["name"] for entry in suite.checks]
        found = tally([judge("s", suite.results(), status)], skips)[:3]
        assert found == expected, f"tally self-test: {what}: expected {expected}, found {found}"
        hidden = [line for line in shown if line in ("much", "PASS") or line.endswith("... ok")]
        assert set(visible) <= set(shown) and not hidden, f"tally self-test: {what}: shown {shown}"
        assert what != "good" or names[0] == "s/a_b::tests::one", f"tally self-test: name: {names}"
    self_test_again()
    with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()) as said:
        skips, one, two, cut = (pathlib.Path(empty) / name for name in ("skips.toml", "one.txt", "two.txt", "cut.txt"))
        skips.write_text("")
        assert main(pathlib.Path(empty), skips) == 1, "tally self-test: no suite at all must fail"
        one.write_text("3 passed, 0 failed, 1 skipped\n")
        two.write_text("a table\n4 passed, 0 failed, 0 skipped\n")
        cut.write_text("4 passed, 0 failed, 0 skipped\nthe table")
        for files, expected in (([one, two], (0, "7 passed, 0 failed, 1 skipped")), ([one, skips], (1, "3 passed, 1 failed, 1 skipped")),
                                ([one, cut, one.with_name("none")], (1, "3 passed, 2 failed, 1 skipped"))):
            found = (total(files), said.getvalue().splitlines()[-1])
            assert found == expected, f"tally self-test: sum of {files}: expected {expected}, found {found}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--self-test"]:
            self_test()
        case ["--read", place]:
            follow(pathlib.Path(place))
        case ["--again", place]:
            print("".join(f"{name}\n" for name in again(results_in(pathlib.Path(place).with_suffix(".json")))), end="")
        case ["--sum", *files]:
            sys.exit(total([pathlib.Path(name) for name in files]))
        case [directory, skips]:
            sys.exit(main(pathlib.Path(directory), pathlib.Path(skips)))
