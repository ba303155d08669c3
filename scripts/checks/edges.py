# SPDX-License-Identifier: Apache-2.0
"""Who may use whom.

In: the ```edges, ```laboratory and ```never blocks of ARCHITECTURE.md and cargo's packages. Out: every normal or build
dependency between our crates that the page does not list, every listed one that no crate has, every one of the product on the
laboratory and every forbidden one, however many steps away, and every place on the page that is no package.
"""

import re

from .tree import Tree, package

PAGE = "ARCHITECTURE.md"
FREE_OF_PREFIX = {"ktsn", "ktsnd", "libktsn"}
# Places of the page that are no cargo package.
NOT_CARGO = {"k8s"}


def package_name(place):
    return place if place in FREE_OF_PREFIX else f"ktsn-{place}"


def block(text, name):
    """The lines of the fenced block with this name."""
    found = re.search(rf"^```{name}\n(.*?)^```", text, re.M | re.S)
    return [line for line in found[1].splitlines() if line.strip()] if found else None


def split(names):
    return [name.strip() for name in names.split(",") if name.strip()]


def reachable(tree, start):
    """Ids of all packages that this one links, through any number of steps. Procedural macros run in the
    compiler and link nothing."""
    seen, todo = set(), [start]
    while todo:
        for link in tree.packages[todo.pop()]["links"]:
            kinds = {kind for target in tree.packages[link]["targets"] for kind in target["kind"]}
            if link not in seen and "proc-macro" not in kinds:
                seen.add(link)
                todo.append(link)
    return seen


def check(tree):
    page = tree.files.get(PAGE, "")
    edges, laboratory, never = (block(page, name) for name in ("edges", "laboratory", "never"))
    if not edges or not laboratory or not never:
        return [f"{PAGE}: the ```edges, ```laboratory and ```never blocks are missing"]
    allowed = {}
    for line in edges:
        used, _, users = line.partition("←")
        for user in split(users):
            allowed.setdefault(package_name(user), set()).update(map(package_name, split(used)))
    faults = [f"{PAGE}: `edges` names {place}, which is no package" for line in edges for place in split(line.replace("←", ","))
              if package_name(place) not in tree.members]
    for name, member in sorted(tree.members.items()):
        direct = {d["name"] for d in member["dependencies"] if d["kind"] in (None, "build")} & set(tree.members)
        for used in sorted(direct - allowed.get(name, set())):
            faults.append(f"{name} uses {used}: {PAGE} lists no such edge")
        faults += [f"{PAGE}: `edges` lists {used} for {name}, which does not use it: take it off"
                   for used in sorted(allowed.get(name, set()) & set(tree.members) - direct)]
    return faults + product(tree, split(",".join(laboratory))) + forbidden(tree, never)


def product(tree, laboratory):
    """The crates outside the laboratory that link one of its own."""
    inside = {package_name(place) for place in laboratory}
    faults = [f"{PAGE}: `laboratory` names {name}, which is no package" for name in sorted(inside - set(tree.members))]
    for name, member in sorted(tree.members.items()):
        if name not in inside:
            names = {tree.packages[link]["name"] for link in reachable(tree, member["id"])}
            faults += [f"{name} links {linked}, which is of the laboratory" for linked in sorted(names & inside)]
    return faults


def forbidden(tree, never):
    faults = []
    for line in never:
        users, _, banned = line.partition("→")
        banned = {n for place in split(banned) for n in (place, package_name(place))}
        for user in split(users):
            member = tree.members.get(package_name(user))
            if member is None:
                if user not in NOT_CARGO:
                    faults.append(f"{PAGE}: `never` names {user}, which is no package")
                continue
            names = {tree.packages[i]["name"] for i in reachable(tree, member["id"])}
            faults += [f"{member['name']} links {name}: forbidden by {PAGE}" for name in sorted(names & banned)]
    return faults


GOOD_PAGE = ("```edges\nbase ← ring, sched, ktsnd\nring, sched ← ktsnd\nring ← lab\n```\n```laboratory\nlab\n```\n"
             "```never\nsched → ring, libc, log\n```\n")


def tree_of(ring=("ktsn-base",), sched=("ktsn-base",), ktsnd=("ktsn-base", "ktsn-ring", "ktsn-sched"), page=GOOD_PAGE):
    registry = "registry+https://example.invalid"
    return Tree({PAGE: page}, [
        package("ktsn-base"), package("ktsn-ring", ring), package("ktsn-sched", sched),
        package("ktsnd", ktsnd), package("ktsn-lab", ["ktsn-ring"]),
        package("libc", source=registry), package("errno", ["libc"], source=registry),
        package("derive", ["libc"], source=registry, kind="proc-macro")])


GOOD = [tree_of(), tree_of(sched=["ktsn-base", ("ktsn-ring", "dev")]), tree_of(sched=["ktsn-base", "derive"])]
BAD = [
    ("an edge that is not listed", tree_of(ring=["ktsn-base", "ktsn-sched"]), "ktsn-ring uses ktsn-sched"),
    ("a build dependency", tree_of(ring=["ktsn-base", ("ktsn-sched", "build")]), "ktsn-ring uses ktsn-sched"),
    ("a forbidden crate", tree_of(sched=["ktsn-base", "libc"]), "ktsn-sched links libc"),
    ("a forbidden crate two steps away", tree_of(sched=["errno"]), "ktsn-sched links libc"),
    ("a forbidden edge of our own", tree_of(sched=["ktsn-ring"]), "ktsn-sched links ktsn-ring"),
    ("a misspelt place", tree_of(page=GOOD_PAGE.replace("sched →", "shed →")), "shed, which is no package"),
    ("an edge of a crate that is not there", tree_of(page=GOOD_PAGE.replace("← ring", "← synth, ring")), "synth, which is no package"),
    ("an edge that no crate has", tree_of(ktsnd=["ktsn-base", "ktsn-ring"]), "`edges` lists ktsn-sched for ktsnd"),
    ("an edge that only tests have", tree_of(ktsnd=["ktsn-base", "ktsn-ring", ("ktsn-sched", "dev")]), "`edges` lists ktsn-sched for ktsnd"),
    ("a product that uses the laboratory", tree_of(ktsnd=["ktsn-base", "ktsn-ring", "ktsn-sched", "ktsn-lab"], page=GOOD_PAGE.replace(
        "ring ← lab", "ring ← lab\nlab ← ktsnd")), "ktsnd links ktsn-lab, which is of the laboratory"),
    ("a laboratory that is not there", tree_of(page=GOOD_PAGE.replace("laboratory\nlab", "laboratory\nlap")), "lap, which is no package"),
    ("no list", tree_of(page=""), "blocks are missing"),
    ("no laboratory", tree_of(page=GOOD_PAGE.replace("```laboratory\nlab\n```\n", "")), "blocks are missing"),
]
