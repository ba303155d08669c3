# SPDX-License-Identifier: Apache-2.0
"""Where `unsafe` may stand and what must stand beside it.

In: Rust files. Out: `unsafe` outside ring, libktsn and files named sys.rs; `unsafe` without a SAFETY comment;
a pure crate that does not forbid it.
"""

import re

from .tree import Tree, rust_code

PURE = ("base/time", "base/model", "base/wire", "base/expect", "resolve", "sched")
HOMES = ("ring/", "libktsn/")
ARGUED = re.compile(r'\bunsafe\s*\{|\bunsafe\s+impl\b|\bunsafe\s+(?:extern\s+"[^"]*"\s+)?fn\s+\w|\bunsafe\s+extern\s+"[^"]*"\s*\{')
COMMENT_REACH = 8  # lines above in which the argument must stand


def check(tree):
    faults = []
    for path, text in tree.sources(".rs"):
        code = rust_code(text)
        at_home = path.startswith(HOMES) or path.endswith("/sys.rs")
        lines = text.splitlines()
        for match in re.finditer(r"\bunsafe\b", code):
            line = code.count("\n", 0, match.start())
            if not at_home:
                faults.append(f"{path}:{line + 1}: unsafe outside ring, libktsn and sys.rs")
            elif ARGUED.match(code, match.start()):
                near = "\n".join(lines[max(0, line - COMMENT_REACH):line + 1])
                if "SAFETY:" not in near and "# Safety" not in near:
                    faults.append(f"{path}:{line + 1}: unsafe without a SAFETY comment")
        for match in re.finditer(r"allow\(unsafe_code\)\]((?:\s*#\[.*\])*)\s*(?:pub(?:\([^)]*\))?\s+)?(\w+\s+\w+)", text):
            before = text[:match.start()].splitlines()[-2:]  # `#[path = "…/sys.rs"]` may stand on either side
            by_path = any('/sys.rs"]' in line and "path" in line for line in [*before, *match[1].splitlines()])
            if not at_home and match[2] != "mod sys" and not by_path:
                faults.append(f"{path}: allow(unsafe_code) is for `mod sys` only")
        if not at_home and re.search(r"#!\[allow\(unsafe_code\)\]", code):
            faults.append(f"{path}: allow(unsafe_code) is for `mod sys` only")
    for crate in PURE:
        root = tree.files.get(f"{crate}/src/lib.rs")
        if root is not None and "#![forbid(unsafe_code)]" not in rust_code(root):
            faults.append(f"{crate}/src/lib.rs: a pure crate says #![forbid(unsafe_code)]")
    return faults


ARGUED_CODE = "// SAFETY: the caller owns p\nlet x = unsafe { *p };\n"
GOOD = [
    Tree({"ring/src/a.rs": ARGUED_CODE, "port/src/sys.rs": ARGUED_CODE, "lab/src/a.rs": "// unsafe { in a comment }\n",
          "sched/src/lib.rs": "#![forbid(unsafe_code)]\nlet s = \"unsafe { }\"; let c = '\"'; // 'unsafe'\n"}),
    Tree({"libktsn/src/a.rs": "type F = unsafe extern \"C\" fn(i32) -> i32;\n/// # Safety\n/// p is valid\npub unsafe fn f() {}\n"}),
    Tree({"port/src/lib.rs": "#[allow(unsafe_code)]\nmod sys;\n"}),
    Tree({"port/tests/a.rs": '#[path = "counting/sys.rs"]\n#[allow(unsafe_code)]\nmod counting;\n'}),
    Tree({"port/tests/a.rs": '#[allow(unsafe_code)]\n#[path = "counting/sys.rs"]\nmod counting;\n'}),
]
BAD = [
    ("unsafe in a wrong place", Tree({"lab/src/a.rs": ARGUED_CODE}), "unsafe outside"),
    ("an unsafe attribute in a wrong place", Tree({"lab/src/a.rs": "#[unsafe(no_mangle)]\n"}), "unsafe outside"),
    ("a block without an argument", Tree({"ring/src/a.rs": "let x = unsafe { *p };\n"}), "without a SAFETY"),
    ("an extern block without one", Tree({"ring/src/a.rs": 'unsafe extern "C" {}\n'}), "without a SAFETY"),
    ("an impl without one", Tree({"port/src/sys.rs": "unsafe impl Send for X {}\n"}), "without a SAFETY"),
    ("an argument too far away", Tree({"ring/src/a.rs": "// SAFETY: far\n" + "\n" * 9 + "unsafe { f() };\n"}), "without a SAFETY"),
    ("a pure crate that forbids nothing", Tree({"sched/src/lib.rs": "// #![forbid(unsafe_code)]\n"}), "a pure crate"),
    ("a crate that allows it", Tree({"lab/src/lib.rs": "#![allow(unsafe_code)]\n"}), "`mod sys` only"),
    ("a module that allows it", Tree({"lab/src/lib.rs": "#[allow(unsafe_code)]\npub(crate) mod fast;\n"}), "`mod sys` only"),
]
