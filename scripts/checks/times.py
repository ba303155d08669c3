# SPDX-License-Identifier: Apache-2.0
"""Time has a type in `sched`.

In: the Rust files of sched/src, without tests. Out: a parameter, field or result that is a bare integer although its name or its
documentation says that it is an instant or a span.
"""

import re

from .tree import Tree, rust_code

BARE = r"(?:Option<)?\(?\s*&?(?:mut )?[ui](?:64|128)\b"
WORDS = ("now at after before from until since wait overdue due ready need needed rest span taken lead start end begin offset ago age "
         "waited extension interval horizon latest nanos micros millis instant hand_over").split()
TIMED = re.compile(rf"(?:{'|'.join(WORDS)})|\w+_(?:at|time|nanos|micros|ns|us|ms|span|since|until|start|interval)")
NAMED = re.compile(rf"\b(\w+):\s*{BARE}")
RETURNS = re.compile(rf"\bfn (\w+)[^;{{]*?->\s*(?:Result<)?{BARE}", re.S)
SPOKEN = re.compile(r"\bnanoseconds?\b|\bhow long\b|\binstant\b|^(?:Time|When)\b", re.I | re.M)


def documentation(lines, line):
    """The doc comment above a line."""
    above = []
    while line > 0 and lines[line - 1].lstrip().startswith(("///", "#[")):
        line -= 1
        above.insert(0, lines[line].strip().removeprefix("///").strip())
    return "\n".join(above)


def check(tree):
    faults = []
    for path, text in tree.sources(".rs"):
        if not path.startswith("sched/src/") or "tests" in path:
            continue
        code = rust_code(text).split("#[cfg(test)]")[0]
        lines = text.splitlines()
        for match in NAMED.finditer(code):
            if TIMED.fullmatch(match[1]):
                line = code.count("\n", 0, match.start()) + 1
                faults.append(f"{path}:{line}: {match[1]} is a bare integer: give it a type of ktsn-time")
        for match in RETURNS.finditer(code):
            line = code.count("\n", 0, match.start())
            if TIMED.fullmatch(match[1]) or SPOKEN.search(documentation(lines, line)):
                faults.append(f"{path}:{line + 1}: {match[1]} returns time as a bare integer: give it a type of ktsn-time")
    return faults


def one(code, path="sched/src/a.rs"):
    return Tree({path: code})


GOOD = [
    one("fn wait(&self, now: Tai) -> Span {}\n/// How often it was late.\nfn late_count(&self, number: u64) -> u64 {}\n"),
    one("struct A { due: Tai, rate: u64 }\n#[cfg(test)]\nmod tests { fn at(now: u64) -> u64 {} }\n"),
    one("fn at(now: u64) {}\n", "sched/src/gate/tests/mod.rs"),
    one("fn at(now: u64) {}\n", "ring/src/a.rs"),
]
BAD = [
    ("a bare instant", one("fn advance(&mut self, now: u64) {}\n"), "now is a bare integer"),
    ("an optional one", one("fn f(\n    class: usize,\n    change_at: Option<u64>,\n) {}\n"), "a.rs:3: change_at"),
    ("a bare field", one("struct A {\n    cycle_time: u64,\n}\n"), "cycle_time is a bare integer"),
    ("a bare span as the result", one("pub fn wait(&self) -> Option<u64> {}\n"), "wait returns time"),
    ("one that the documentation names", one("/// Nanoseconds for which it was open.\nfn opened(&self) -> Result<u64, u64> {}\n"),
     "opened returns time"),
]
