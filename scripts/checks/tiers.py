# SPDX-License-Identifier: Apache-2.0
"""Which folder of a crate uses which.

In: the ```tiers block of ARCHITECTURE.md, one crate a line from the top tier to the lowest, and the crates' Rust files. Out: every use of a
folder that does not stand in a lower tier, every folder that the line does not name, and every name that is no folder.
"""

import re

from .edges import PAGE, block, split
from .tree import Tree, rust_code


def uses(code):
    """(line, first name) of each path that begins at the crate's root, alone or in a group."""
    for match in re.finditer(r"\bcrate::(?:(\w+)|\{)", code):
        line = code.count("\n", 0, match.start()) + 1
        if match[1]:
            yield line, match[1]
            continue
        depth, name = 1, True
        for word in re.finditer(r"\w+|[{},]", code[match.end():]):
            depth += {"{": 1, "}": -1}.get(word[0], 0)
            if depth == 0:
                break
            if word[0] in "{},":
                name = name or (depth == 1 and word[0] == ",")
            elif name and depth == 1:
                yield line + code.count("\n", match.end(), match.end() + word.start()), word[0]
                name = False


def check(tree):
    lines = block(tree.files.get(PAGE, ""), "tiers")
    if not lines:
        return [f"{PAGE}: the ```tiers block is missing"]
    faults = []
    for line in lines:
        crate, _, row = line.partition(":")
        tiers = {name: tier for tier, names in enumerate(row.split("→")) for name in split(names)}
        seen = set()
        for path, text in tree.sources(".rs"):
            if not path.startswith(f"{crate}/src/") or path == f"{crate}/src/lib.rs":
                continue
            place = re.split(r"[/.]", path.removeprefix(f"{crate}/src/"))[0]
            seen.add(place)
            if place not in tiers:
                faults.append(f"{path}: `tiers` of {PAGE} does not name {place}")
                continue
            faults += [f"{path}:{at}: {place} uses {used}, which stands in no lower tier ({PAGE})"
                       for at, used in uses(rust_code(text)) if used != place and tiers.get(used, -1) <= tiers[place]]
        faults += [f"{PAGE}: `tiers` names {name}, which is no folder of {crate}" for name in tiers if name not in seen]
    return faults


def two(top, low="", row="a: hooks → send, errors → base"):
    files = {"hooks.rs": "use crate::send;\n", "send/one.rs": top, "errors.rs": "", "base/low.rs": low}
    return Tree({PAGE: f"```tiers\n{row}\n```\n"} | {f"a/src/{name}": code for name, code in files.items()})


GOOD = [two("use crate::base::low;\nuse crate::send::two;\n"), two("use crate::{base::{hooks, low}, send};\n// crate::hooks\n")]
BAD = [
    ("a use of a higher tier", two("", "use crate::send::one;\n"), "a/src/base/low.rs:1: base uses send"),
    ("a use beside", two("fn f() { crate::errors::g() }\n"), "send uses errors"),
    ("a use in a group", two("use crate::{\n    base::low, hooks::{self, base},\n};\n"), "a/src/send/one.rs:2: send uses hooks"),
    ("a folder that is not named", two("", row="a: hooks → send → base"), "does not name errors"),
    ("a name that is no folder", two("", row="a: hooks → send, errors → base → call"), "call, which is no folder"),
]
