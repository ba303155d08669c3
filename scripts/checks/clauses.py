# SPDX-License-Identifier: Apache-2.0
"""Which clauses of 802.1Q-2022 are implemented, tested or left out, and why.

In: docs/clauses.toml and the Rust sources. Out: an entry that names a file or a test that is not there, a clause that
is left out without a reason, and a clause that a test's name or the scheduler's text refers to and no entry lists.
"""

import re
import tomllib

from .tree import Tree

PAGE = "docs/clauses.toml"
STATES = ("tested", "implemented", "left-out")
KEYS = {"number", "title", "state", "where", "tests", "why"}
NUMBER = re.compile(r"[1-9]\d*(\.\d+)+")
TEST = re.compile(r"^\s*fn (\w+)\(", re.M)
TEST_NAME = re.compile(r"^clause_((?:\d+_)+)")
MENTION = re.compile(r"(?<![\d.])(?:8\.6\.[5-9]|12\.(?:29|31))(?:\.\d+)*(?![\d])")
PLACE = "sched/src/"


def check(tree):
    if PAGE not in tree.files:
        return [f"{PAGE}: is missing"] if any(path.startswith(PLACE) for path in tree.files) else []
    try:
        entries = tomllib.loads(tree.files[PAGE]).get("clause", [])
    except tomllib.TOMLDecodeError as error:
        return [f"{PAGE}: {error}"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [f"{PAGE}: [[clause]] entries are expected"]
    tests = {name for path, text in tree.sources(".rs") for name in TEST.findall(text)}
    faults = [fault for entry in entries for fault in entry_faults(tree, entry, tests)]
    numbers = [str(entry.get("number", "")) for entry in entries]
    order = [[int(part) for part in number.split(".")] for number in numbers if NUMBER.fullmatch(number)]
    if order != sorted(order) or len(set(numbers)) != len(numbers):
        faults.append(f"{PAGE}: entries are sorted by number, each once")
    return faults + unlisted(tree, numbers, tests)


def entry_faults(tree, entry, tests):
    at = f"{PAGE}: {entry.get('number', '?')}"
    state, where, named = entry.get("state"), entry.get("where", []), entry.get("tests", [])
    faults = [f"{at}: unknown key {key}" for key in sorted(set(entry) - KEYS)]
    if not NUMBER.fullmatch(str(entry.get("number", ""))) or not entry.get("title"):
        faults.append(f"{at}: needs a number like 8.6.9.1 and a title")
    if state not in STATES:
        return faults + [f"{at}: state {state!r}, expected one of {', '.join(STATES)}"]
    if state == "left-out":
        if not entry.get("why"):
            faults.append(f"{at}: left out without a reason")
        if where or named:
            faults.append(f"{at}: left out and still somewhere")
        return faults
    if not where:
        faults.append(f"{at}: where is it?")
    if (state == "tested") != bool(named):
        faults.append(f"{at}: {state} {'names no test' if state == 'tested' else 'and still names a test'}")
    faults += [f"{at}: {path} does not exist" for path in where if path not in tree.files]
    return faults + [f"{at}: there is no test {name}" for name in named if name not in tests]


def unlisted(tree, numbers, tests):
    """A listed clause covers what lies below it."""
    def covered(number):
        parts = number.split(".")
        return any(".".join(parts[:length]) in numbers for length in range(2, len(parts) + 1))

    named = {(found[1].rstrip("_").replace("_", "."), f"test {name}")
             for name in tests if (found := TEST_NAME.match(name))}
    said = {(found[0], path) for path, text in tree.sources(".rs") if path.startswith(PLACE) for found in MENTION.finditer(text)}
    return [f"{PAGE}: no entry for {number} ({place})" for number, place in sorted(named | said) if not covered(number)]


CODE = "// 802.1Q 8.6.9.1.1\n#[test]\nfn clause_8_6_9_1_boundary() {}\n"
ENTRY = '[[clause]]\nnumber = "8.6.9.1"\ntitle = "t"\nstate = "tested"\nwhere = ["sched/src/a.rs"]\ntests = ["clause_8_6_9_1_boundary"]\n'
LEFT = '[[clause]]\nnumber = "8.6.9.9"\ntitle = "t"\nstate = "left-out"\nwhy = "no MAC here"\n'


def tree_of(page=ENTRY, code=CODE):
    return Tree({PAGE: page, "sched/src/a.rs": code})


GOOD = [tree_of(), tree_of(ENTRY + LEFT), Tree({"README.md": "x"}),
        tree_of(ENTRY.replace('"tested"', '"implemented"').replace('tests = ["clause_8_6_9_1_boundary"]\n', ""))]
BAD = [
    ("no page", Tree({"sched/src/a.rs": CODE}), "is missing"),
    ("a broken page", tree_of("[[clause]\n"), PAGE),
    ("an unknown state", tree_of(ENTRY.replace('"tested"', '"done"')), "expected one of"),
    ("a test that is not there", tree_of(ENTRY.replace('["clause', '["gone", "clause')), "no test gone"),
    ("a file that is not there", tree_of(ENTRY.replace("a.rs", "b.rs")), "does not exist"),
    ("tested without a test", tree_of(ENTRY.replace('["clause_8_6_9_1_boundary"]', "[]")), "names no test"),
    ("left out without a reason", tree_of(ENTRY + LEFT.replace("no MAC here", "")), "without a reason"),
    ("a clause in a test's name", tree_of(LEFT), "no entry for 8.6.9.1 (test"),
    ("a clause in the text", tree_of(LEFT), "no entry for 8.6.9.1.1"),
    ("twice", tree_of(ENTRY + ENTRY), "each once"),
    ("not sorted", tree_of(LEFT + ENTRY), "sorted"),
    ("a wrong key", tree_of(ENTRY + 'note = "x"\n'), "unknown key note"),
    ("nowhere", tree_of(ENTRY.replace('where = ["sched/src/a.rs"]\n', "")), "where is it"),
]
