#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts lines of code, folder by folder.

In: the files that git knows, of this checkout or of the one that is named. Out: a table of code and tests, and their sums. A line counts
that is neither blank nor a comment alone, generated files too. Tests are what lies in a folder or file of tests, Rust's `#[cfg(test)]`
modules and Go's _test.go; all else is code. Pages and data are not counted.
"""

import pathlib
import re
import subprocess
import sys

SOURCE = {".rs", ".go", ".c", ".h", ".S", ".proto", ".py", ".sh", ".js", ".css"}
HASH = {".py", ".sh"}
TEST_FOLDERS = {"tests", "test", "testdata", "fixtures"}
TEST_FILE = re.compile(r"(^|_)tests?\.\w+$")
TEST_MODULE = re.compile(r"(pub(\(\w+\))? )?mod \w+ \{$")


def code_lines(text, suffix):
    """Lines with code in them, stripped at the end. Comments of C's kind or of the shell's, and Python's docstrings, are left out."""
    inside = None  # what ends the comment
    for line in text.splitlines():
        words = line.strip()
        if inside:
            inside = None if inside in words else inside
        elif not words or words.startswith("#" if suffix in HASH else "//"):
            continue
        elif suffix == ".py" and words.startswith('"""'):
            inside = None if words.count('"""') > 1 else '"""'
        elif suffix not in HASH and words.startswith("/*"):
            inside = None if "*/" in words else "*/"
        else:
            yield line.rstrip()


def counted(path, text):
    """(lines of code, lines of tests) of a file."""
    lines = list(code_lines(text, path.suffix))
    if TEST_FOLDERS & set(path.parts[:-1]) or TEST_FILE.search(path.name):
        return 0, len(lines)
    tests, is_marked, is_inside = 0, False, False
    for line in lines if path.suffix == ".rs" else ():
        is_inside = is_inside or is_marked and TEST_MODULE.match(line) is not None
        is_marked = line == "#[cfg(test)]" or is_marked and line.startswith(("#[", "mod ", "use "))
        tests += is_inside or is_marked
        is_inside = is_inside and line != "}"
        is_marked = is_marked and not line.endswith(";")
    return len(lines) - tests, tests


def main(root):
    names = subprocess.run(["git", "-C", root, "ls-files"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    folders = {}
    for path in map(pathlib.PurePath, names):
        if path.suffix in SOURCE and (pathlib.Path(root) / path).is_file():
            sums = folders.setdefault(path.parts[0], [0, 0])
            for index, lines in enumerate(counted(path, (pathlib.Path(root) / path).read_text(errors="replace"))):
                sums[index] += lines
    folders["all"] = [sum(sums[index] for sums in folders.values()) for index in (0, 1)]
    print(f"{'folder':<12}{'code':>10}{'tests':>10}")
    for name, (code, tests) in folders.items():
        print(f"{name:<12}{code:>10,}{tests:>10,}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["."])
