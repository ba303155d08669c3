#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the project's own checks over the tree.

In: a git checkout. Out: one line per fault, exit status 1 if there is any. Before a check may judge the tree it
has to prove itself: it must find the fault in each of its bad examples and none in the good ones. With --write the
script first writes the generated tables of the pages again.
"""

import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
from checks import clauses, dependencies, edges, files, golang, pages, tables, tiers, times, tree, unsafety  # noqa: E402

CHECKS = (edges, unsafety, files, dependencies, golang, clauses, pages, tables, tiers, times)


def prove(module):
    """Faults of the check itself."""
    name = module.__name__
    faults = [f"{name}: good example {index + 1} was refused: {found}"
              for index, good in enumerate(module.GOOD) if (found := module.check(good))]
    for what, bad, expected in module.BAD:
        if not any(expected in fault for fault in module.check(bad)):
            faults.append(f"{name}: did not find: {what} (expected '{expected}')")
    return faults


def main():
    faults = [fault for module in CHECKS for fault in prove(module)]
    if not faults:
        try:
            root = pathlib.Path(__file__).resolve().parent.parent
            if sys.argv[1:] == ["--write"]:
                for path, text in tables.rewritten(tree.Tree.of(str(root))).items():
                    (root / path).write_text(text)
            real = tree.Tree.of(str(root))
        except subprocess.CalledProcessError as error:  # it has said why on stderr
            print(f"checks: {' '.join(error.cmd)} failed")
            return 1
        faults = [fault for module in CHECKS for fault in module.check(real)]
    for fault in faults:
        print(fault)
    examples = sum(len(module.GOOD) + len(module.BAD) for module in CHECKS)
    print(f"checks: {len(CHECKS)} with {examples} examples of their own, {len(faults)} fault(s)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
