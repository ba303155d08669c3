#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a person wants to see of a test run while it goes on.

In: what `cargo test -- --show-output` or `go test -v` prints. Out: each test program's name as it begins, its result, what it
skipped, and whatever a failed one said; all else that is not a passed test's: warnings, compile errors. Never: silence about
a failure, or a second reading of the results (scripts/tally.py counts).
"""

import io
import re
import sys

PASSED = re.compile(r"^(test .+ \.\.\. (ok|ignored.*)|running \d+ tests?|\s*)$")
SKIPPED = re.compile(r"^\s*SKIP \S+: \S")
GO_BEGUN = re.compile(r"^=== (RUN|PAUSE|CONT|NAME) ")
GO_PASSED = re.compile(r"^\s*--- PASS: ")
GO_SKIPPED = re.compile(r"^\s*--- SKIP: ")
GO_ENDED = re.compile(r"^(ok|FAIL|\?)\s+\S+/\S+\s")


def follow(lines, say):
    """Says what of `lines` is to be seen, each as soon as that is known."""
    hidden = False  # in libtest's list of what passed tests have printed
    package = []  # of Go, whose result comes last
    for line in lines:
        line = line.rstrip("\n")
        if line == "successes:":
            hidden = True
        elif line == "failures:" or line.startswith("test result:"):
            hidden = False
        if GO_BEGUN.match(line):
            package = package or [""]  # from here on, all is kept until the package ends
        if package:
            package.append(line)
            if found := GO_ENDED.match(line):
                if found[1] == "FAIL":
                    for kept in package[1:-1]:
                        if not (GO_BEGUN.match(kept) or GO_PASSED.match(kept)):
                            say(kept)
                else:
                    for before, kept in zip(package, package[1:]):
                        if GO_SKIPPED.match(kept):
                            say(before)  # the reason
                            say(kept)
                say(line)
                package = []
        elif SKIPPED.match(line) or not (hidden or PASSED.match(line)):
            say(line)
    for kept in package[1:]:
        say(kept)


CARGO = """   Compiling a v0.1.0
     Running tests/a.rs (target/debug/deps/a-0123)

running 3 tests
test one ... ok
test two ... FAILED
test three ... ignored, no such device

successes:

---- one stdout ----
much
SKIP one: no such device

successes:
    one

failures:

---- two stdout ----
it broke

failures:
    two

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
CARGO_SEEN = """   Compiling a v0.1.0
     Running tests/a.rs (target/debug/deps/a-0123)
test two ... FAILED
SKIP one: no such device
failures:
---- two stdout ----
it broke
failures:
    two
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
GO = """=== RUN   TestOne
    one_test.go:7: much
--- PASS: TestOne (0.01s)
=== RUN   TestNone
    one_test.go:8: no such device
--- SKIP: TestNone (0.00s)
ok  \tktsn.io/a\t0.1s
=== RUN   TestTwo
    two_test.go:9: it broke
--- FAIL: TestTwo (0.01s)
FAIL
FAIL\tktsn.io/b\t0.1s
=== RUN   TestThree
panic: oh
"""
GO_SEEN = """    one_test.go:8: no such device
--- SKIP: TestNone (0.00s)
ok  \tktsn.io/a\t0.1s
    two_test.go:9: it broke
--- FAIL: TestTwo (0.01s)
FAIL
FAIL\tktsn.io/b\t0.1s
=== RUN   TestThree
panic: oh
"""


def self_test():
    """A failure is told whole, a pass in one line."""
    for given, expected in ((CARGO, CARGO_SEEN), (GO, GO_SEEN)):
        seen = []
        follow(io.StringIO(given), seen.append)
        assert "\n".join(seen) + "\n" == expected, f"follow self-test: {seen}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    sys.stdin.reconfigure(errors="replace")
    follow(sys.stdin, lambda line: print(line, flush=True))
