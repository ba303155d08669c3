# SPDX-License-Identifier: Apache-2.0
"""Tables of what the code knows: reasons of drops and refusals, and the keys of the configuration.

In: the Rust sources, and blocks in pages. Between `<!-- words of ENUM in FILE -->` and `<!-- end of words -->` stands a table that is made
from the enum's words and their documentation (`scripts/check.py --write`). Between `<!-- keys of NAME in FILE -->` and
`<!-- end of keys -->` stand tables by hand, of a struct's keys or an enum's words. Out: a block of words that is not current, a key
without a row, a row without a key.
"""

import re

from .tree import Tree

BLOCK = re.compile(r"(<!-- words of (\w+) in (\S+) -->\n)(.*?)(<!-- end of words -->)", re.S)
BEGIN = re.compile(r"<!-- (?:words|keys) of ")
KEYS = re.compile(r"<!-- keys of (\w+) in (\S+) -->\n(.*?)<!-- end of keys -->", re.S)
FIELD = re.compile(r"^ *(?:pub(?:\([^)]*\))? )?(?:r#)?([a-z]\w*): ", re.M)
# `/// What it means.` above `Variant = 3, "word";` or `Variant = "word",`.
WORD = re.compile(r'((?:^ *///[^\n]*\n)+) *\w+ = (?:\d+, )?"([\w-]+)"[;,]', re.M)


def rows(text, enum):
    """The table of an enum, or None where the file has no such enum with words."""
    body = re.search(rf"\b{enum} \{{\n(.*?)^ *\}}", text, re.M | re.S)
    words = WORD.findall(body[1]) if body else []
    table = ["| word | meaning |", "|---|---|"]
    for documentation, word in words:
        meaning = " ".join(line.strip().removeprefix("///").strip() for line in documentation.splitlines())
        table.append(f"| `{word}` | {meaning.removesuffix('.')} |")
    return "\n".join(table) + "\n" if words else None


def keys(text, name):
    """The fields of a struct, or the words of an enum; None where the file has none of that name."""
    body = re.search(rf"\b{name} \{{\n(.*?)^ *\}}", text, re.M | re.S)
    return {word for _, word in WORD.findall(body[1])} or set(FIELD.findall(body[1])) if body else None


def named(inner):
    """The names in the first column of the block's tables, without the headings."""
    bodies = re.sub(r"^\|.*\n\|-", "", inner, flags=re.M)
    return {name.replace("-", "_") for row in re.findall(r"^\|([^|\n]*)\|", bodies, re.M) for name in re.findall(r"`([\w-]+)`", row)}


def rewritten(tree):
    """path -> text of each page with a block that is not current."""
    fresh = {}
    for path, text in tree.sources(".md"):
        new = BLOCK.sub(lambda block: block[1] + (rows(tree.files.get(block[3], ""), block[2]) or block[4]) + block[5], text)
        if new != text:
            fresh[path] = new
    return fresh


def check(tree):
    faults = []
    for path, text in tree.sources(".md"):
        blocks = BLOCK.findall(text)
        if len(blocks) + len(KEYS.findall(text)) != len(BEGIN.findall(text)):
            faults.append(f"{path}: a block of words or keys has no end")
        for struct, source, inner in KEYS.findall(text):
            wanted = keys(tree.files.get(source, ""), struct)
            if wanted is None:
                faults.append(f"{path}: {source} has no {struct}")
                continue
            faults += [f"{path}: {struct} has the key {key}, and no row says what it is" for key in sorted(wanted - named(inner))]
            faults += [f"{path}: {struct} has no key {key}" for key in sorted(named(inner) - wanted)]
        for _, enum, source, inner, _ in blocks:
            wanted = rows(tree.files.get(source, ""), enum)
            if wanted is None:
                faults.append(f"{path}: {source} has no words of {enum}")
            elif inner != wanted:
                faults.append(f"{path}: the words of {enum} are not those of {source}: run scripts/check.py --write")
    return faults


CODE = 'reasons!(\n    /// Why.\n    Reason {\n        /// It came\n        /// late.\n        Late = 0, "late";\n    }\n);\n'
PLAIN = 'words! {\n    pub enum Reason {\n        /// It came late.\n        Late = "late",\n    }\n}\n'
PAGE = "<!-- words of Reason in a.rs -->\n| word | meaning |\n|---|---|\n| `late` | It came late |\n<!-- end of words -->\n"


def tree_of(page=PAGE, code=CODE):
    return Tree({"docs/a.md": page, "a.rs": code})


KEYED = "<!-- keys of Port in a.rs -->\n| field | `x` |\n|---|---|\n| `cpu`, `link-speed` | of `it` |\n<!-- end of keys -->\n"
STRUCT = "struct Port {\n    pub(super) cpu: u8,\n    link_speed: Option<u64>,\n}\n"
GOOD = [tree_of(), tree_of(KEYED, STRUCT), tree_of(KEYED.replace("cpu`, `link-speed", "late").replace("Port", "Reason")),
        tree_of(code=PLAIN), tree_of("no block"), tree_of(rewritten(tree_of(PAGE.replace("late |", "|")))["docs/a.md"])]
BAD = [
    ("a word that is missing", tree_of(PAGE.replace("| `late` | It came late |\n", "")), "are not those of a.rs"),
    ("another meaning", tree_of(PAGE.replace("It came", "It went")), "are not those of a.rs"),
    ("another enum", tree_of(PAGE.replace("of Reason", "of Season")), "a.rs has no words of Season"),
    ("another file", tree_of(PAGE.replace("in a.rs", "in b.rs")), "b.rs has no words"),
    ("a key without a row", tree_of(KEYED.replace("`cpu`, ", ""), STRUCT), "has the key cpu"),
    ("a row without a key", tree_of(KEYED, STRUCT.replace("cpu", "gpu")), "Port has no key cpu"),
    ("a word without a row", tree_of(KEYED.replace("Port", "Reason")), "has the key late"),
    ("another struct", tree_of(KEYED, "struct Sort {\n}\n"), "a.rs has no Port"),
    ("keys without an end", tree_of(KEYED.replace("<!-- end of keys -->", ""), STRUCT), "has no end"),
    ("a block without an end", tree_of(PAGE.replace("<!-- end of words -->", "")), "has no end"),
]
