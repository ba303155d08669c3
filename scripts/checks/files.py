# SPDX-License-Identifier: Apache-2.0
"""What every source file owes: a licence line, a bounded length, nothing left undone.

In: the project's files and scripts/long-files.txt. Out: faults. The list of long files can only shrink: an entry
holds the file's exact length, no entry grows above any number it had in an earlier commit, and a
path that left the list does not come back.
"""

import re

from .tree import Tree, rust_code

LINES_MAX = 500
LONG = "scripts/long-files.txt"
SOURCE = (".rs", ".py", ".sh", ".c", ".h", ".go", ".proto")
LICENSED = (*SOURCE, ".toml", ".yaml", ".yml", "Makefile", ".ci/run", ".html", ".js", ".css")
UNDONE = re.compile(r"\btodo!|\bunimplemented!|\bdbg!")
UNDONE_COMMENT = re.compile(r"\b(TODO|FIXME|XXX)\b")


def check(tree):
    return licence(tree) + length(tree) + undone(tree)


def wanted_licence(path):
    if path.startswith("virtio-net/"):
        return "BSD-2-Clause"
    # What the kernel loads: some of its helpers are open to programs under its own licence only.
    return "GPL-2.0-only OR BSD-2-Clause" if path.startswith("bpf/programs/") else "Apache-2.0"


def licence(tree):
    faults = []
    for path, text in tree.sources(*LICENSED):
        lines = text.splitlines()[:2]
        first = lines[1:] if lines and lines[0].startswith("#!") and not lines[0].startswith("#![") else lines[:1]
        wanted = wanted_licence(path)
        if not first or not re.search(rf"SPDX-License-Identifier: {re.escape(wanted)}(?![\w.-])", first[0]):
            faults.append(f"{path}: the first line says SPDX-License-Identifier: {wanted}")
    return faults


def entries(text):
    """path -> lines, from `path lines reason` on each line."""
    rows = [line.split(None, 2) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {row[0]: int(row[1]) for row in rows if len(row) == 3}


def length(tree):
    listed = entries(tree.files.get(LONG, ""))
    faults = []
    for path, text in tree.sources(*SOURCE):
        lines = len(text.splitlines())
        if path in listed and lines <= LINES_MAX:
            faults.append(f"{LONG}: {path} has {lines} lines now: take it off")
        elif path in listed and lines != listed[path]:
            faults.append(f"{LONG}: {path} has {lines} lines, listed as {listed[path]}: the list holds the exact length")
        elif path not in listed and lines > LINES_MAX:
            faults.append(f"{path}: {lines} lines, at most {LINES_MAX}: split it by what it holds")
    faults += [f"{LONG}: {path} does not exist" for path in listed if path not in tree.files]
    # Newest first; the first commit of the list is where each entry may begin.
    for earlier in map(entries, tree.history.get(LONG, [])):
        for path, lines in listed.items():
            if path not in earlier:
                faults.append(f"{LONG}: {path} is new: the list only shrinks")
            elif lines > earlier[path]:
                faults.append(f"{LONG}: {path} grew from {earlier[path]} to {lines}")
    return faults


def undone(tree):
    faults = []
    for path, text in tree.sources(*SOURCE):
        if path == "scripts/checks/files.py":  # these words are its subject
            continue
        code = rust_code(text) if path.endswith(".rs") else ""
        for number, (line, bare) in enumerate(zip(text.splitlines(), code.splitlines() or text.splitlines()), 1):
            if (path.endswith(".rs") and UNDONE.search(bare)) or UNDONE_COMMENT.search(line):
                faults.append(f"{path}:{number}: left undone: {line.strip()[:60]}")
    return faults


HEADER = "// SPDX-License-Identifier: Apache-2.0\n"
LENGTHY = HEADER + "\n" * LINES_MAX
GOOD = [
    Tree({"a/src/lib.rs": HEADER, "scripts/a.sh": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n", "README.md": "x"}),
    Tree({"virtio-net/a.c": "// SPDX-License-Identifier: BSD-2-Clause\n"}),
    Tree({"bpf/programs/a.bpf.c": "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n"}),
    Tree({"a.rs": LENGTHY, LONG: "a.rs 501 one table\n"}, history={LONG: ["a.rs 501 one table\n", "a.rs 600 one table\n"]}),
]
BAD = [
    ("no licence line", Tree({"a.rs": "//! text\n"}), "SPDX-License-Identifier: Apache-2.0"),
    ("an inner attribute is no shebang", Tree({"a.rs": "#![no_std]\n" + HEADER}), "the first line says"),
    ("another licence", Tree({"virtio-net/a.c": HEADER}), "BSD-2-Clause"),
    ("another licence for the kernel", Tree({"bpf/programs/a.bpf.c": HEADER}), "GPL-2.0-only"),
    ("an empty file", Tree({"a.rs": ""}), "the first line says"),
    ("a long file", Tree({"a.rs": LENGTHY}), "at most 500"),
    ("a listed file that grew", Tree({"a.rs": LENGTHY + "\n", LONG: "a.rs 501 one table\n"}), "exact length"),
    ("an entry that is not needed", Tree({"a.rs": HEADER, LONG: "a.rs 501 one table\n"}), "take it off"),
    ("an entry raised", Tree({"a.rs": LENGTHY + "\n", LONG: "a.rs 502 t\n"}, history={LONG: ["a.rs 501 t\n"]}), "grew from 501"),
    ("an entry added", Tree({"a.rs": LENGTHY, LONG: "a.rs 501 t\n"}, history={LONG: [""]}), "only shrinks"),
    ("an entry without a file", Tree({LONG: "a.rs 501 t\n"}), "does not exist"),
    ("a macro that marks work", Tree({"a.rs": HEADER + "fn f() { todo!() }\n"}), "left undone"),
    ("a comment that marks work", Tree({"a.rs": HEADER + "// TODO later\n"}), "left undone"),
]
