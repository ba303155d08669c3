# SPDX-License-Identifier: Apache-2.0
"""Other people's crates.

In: cargo's packages and docs/design/dependencies.md. Out: a dependency without its line on that page, a line
without its dependency, and any crate of Cargo.lock under a licence that we do not accept.
"""

import re

from .tree import Tree, package

PAGE = "docs/design/dependencies.md"
ACCEPTED = {"0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
            "CC0-1.0", "ISC", "MIT", "Unicode-3.0", "Unlicense", "Zlib"}
TOKEN = re.compile(r"\s*(\(|\)|\bAND\b|\bOR\b|/|[A-Za-z0-9.+-]+(?:\s+WITH\s+[A-Za-z0-9.+-]+)?)")


def check(tree):
    return explained(tree) + licences(tree)


def explained(tree):
    used = {d["name"] for member in tree.members.values() for d in member["dependencies"]} - set(tree.members)
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)\|\s*$", tree.files.get(PAGE, ""), re.M)
    listed = {name for name, text in rows if text.strip(" |")}
    return ([f"{PAGE}: no line says why {name} was chosen" for name in sorted(used - listed)]
            + [f"{PAGE}: {name} is not a dependency any more" for name in sorted({n for n, _ in rows} - used)])


def licences(tree):
    faults = []
    for entry in tree.packages.values():
        expression = entry["license"]
        if not expression or not acceptable(expression):
            faults.append(f"{entry['name']} {entry['version']}: licence not accepted: {expression or 'none given'}")
    return faults


def acceptable(expression):
    """Whether an SPDX expression can be met by accepted licences alone; `/` is the old spelling of OR."""
    tokens, position = [], 0
    while expression[position:].strip():
        found = TOKEN.match(expression, position)
        if not found:
            return False
        tokens.append(" ".join(found[1].split()))
        position = found.end()
    tokens.append("end")

    def either():
        met = both()
        while tokens[0] in ("OR", "/"):
            tokens.pop(0)
            met = both() or met
        return met

    def both():
        met = one()
        while tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one():
        token = tokens.pop(0)
        if token != "(":
            return token in ACCEPTED
        met = either()
        return tokens.pop(0) == ")" and met

    try:
        return either() and tokens == ["end"]
    except IndexError:
        return False


REGISTRY = "registry+https://example.invalid"


def tree_of(license="MIT", rows="| `libc` | the types of the kernel's interface |\n"):
    return Tree({PAGE: rows}, [package("ktsn-port", ["libc"]), package("libc", source=REGISTRY, license=license)])


GOOD = [tree_of(text) for text in (
    "MIT", "MIT/Apache-2.0", "Apache-2.0 / MIT", "(MIT OR GPL-3.0-only) AND Unicode-3.0", "MIT AND BSD-3-Clause",
    "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", "MIT OR Apache-2.0 OR LGPL-2.1-or-later")]
BAD = [
    ("copyleft", tree_of("GPL-3.0-only"), "not accepted"),
    ("copyleft as one of two", tree_of("MIT AND GPL-3.0-only"), "not accepted"),
    ("copyleft in brackets", tree_of("(MIT OR Zlib) AND (GPL-3.0-only OR AGPL-3.0-only)"), "not accepted"),
    ("an exception we have not read", tree_of("Apache-2.0 WITH Strange-exception"), "not accepted"),
    ("no licence", tree_of(None), "none given"),
    ("a broken expression", tree_of("(MIT"), "not accepted"),
    ("a dependency without its line", tree_of(rows=""), "why libc was chosen"),
    ("a line that says nothing", tree_of(rows="| `libc` |  |\n"), "why libc was chosen"),
    ("a line without its dependency", tree_of(rows="| `libc` | x |\n| `nix` | y |\n"), "nix is not a dependency"),
]
