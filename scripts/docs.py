#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as HTML.

In: every Markdown page of the tree, the files that they link to, the programs in the directory PROGRAMS. Out:
out/docs/html/index.html. A link that leads nowhere, or a page that no list names, fails. Never: the network.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "out/docs"
# Whose commands have pages.
PROGRAMS = ("ktsn", "ktsn-bench", "ktsnd")
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# `  name   what it does` below `Commands:` in a help page.
COMMAND = re.compile(r"^  ([a-z][a-z0-9-]*)(?:  .*)?$", re.M)
# Where the sources are read: a page links to a folder of them, which is no page.
IS_PAGE = ".md"
METRICS = "k8s/internal/metrics/names.txt"


def tracked(pattern):
    found = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--", pattern], check=True, stdout=subprocess.PIPE).stdout
    return [pathlib.Path(name) for name in found.decode().split("\0") if name]


def help_of(program, words):
    ran = subprocess.run([program, *words, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode != 0:
        sys.exit(f"docs: {program} {' '.join(words)} --help ended with status {ran.returncode}: {ran.stdout.strip()[:500]}")
    return ran.stdout.rstrip()


def commands_of(text):
    part = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", text, re.M | re.S)
    return [name for name in COMMAND.findall(part.group(1)) if name != "help"] if part else []


def reference(program, words=(), depth=1):
    """Help pages of a program's commands, one heading each."""
    text = help_of(program, words)
    title = " ".join([program.name, *words])
    assert "````" not in text, title
    yield f"{'#' * depth} {title}\n\n````text\n{text}\n````\n"
    for name in commands_of(text):
        yield from reference(program, (*words, name), min(depth + 1, 4))


def metrics(text):
    """The table of metrics, from the file that both programs are built from."""
    rows = [line.split(" | ") for line in text.splitlines() if line and not line.startswith("#")]
    yield "# Metrics\n\n| metric | kind | labels | served by | meaning |\n|---|---|---|---|---|"
    for name, kind, labels, by, meaning in (row for row in rows if len(row) == 5):
        named = ", ".join(f"`{label}`" for label in labels.split(",") if label)
        yield f"| `ktsn_{name}` | {kind} | {named} | {'agent' if by == 'agent' else 'ktsnd, agent'} | {meaning} |"


def lay_out(source, programs):
    """The pages in their folders, so that their links among each other hold, and the files that they link to."""
    linked = set()
    for page in tracked("*.md"):
        text = (ROOT / page).read_text()
        place = source / page
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        for target, _ in LINK.findall(FENCE.sub("", text)):
            if "://" not in target and not target.endswith(IS_PAGE):
                linked.add((ROOT / page.parent / target).resolve())
    for path in sorted(linked):
        place = source / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            names = tracked(f"{path.relative_to(ROOT)}/*")
            place.with_suffix(IS_PAGE).write_text("\n".join(["---", "orphan: true", "---", f"# {path.relative_to(ROOT)}", "", *(f"- `{name.name}`" for name in names), ""]))
        else:
            shutil.copyfile(path, place)
    (source / "index.md").write_text((ROOT / "docs/site/index.myst").read_text())
    (source / "reference").mkdir()
    (source / "reference/metrics.md").write_text("\n".join(metrics((ROOT / METRICS).read_text())) + "\n")
    for name in PROGRAMS:
        (source / "reference" / f"{name}.md").write_text("\n".join(reference(programs / name)))


def main():
    parser = argparse.ArgumentParser(description="Builds out/docs/html from the tree's pages.", epilog="Example: scripts/docs.py target/release")
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS", help=f"directory with {', '.join(PROGRAMS)}, for the pages of their commands")
    programs = parser.parse_args().programs.resolve()
    for name in PROGRAMS:
        if not (programs / name).is_file():
            parser.error(f"{programs}/{name} is missing: run `make build`")
    shutil.rmtree(OUT, ignore_errors=True)
    source = OUT / "source"
    source.mkdir(parents=True)
    lay_out(source, programs)
    command = ["sphinx-build", "-b", "html", "-W", "--keep-going", "-q", "-j", "auto", "-c", ROOT / "docs/site", "-d", OUT / "doctrees", source, OUT / "html"]
    status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if status != 0:
        sys.exit("docs: the pages above must be mended")
    pages = len(list((OUT / "html").rglob("*.html")))
    print(f"{pages} pages: file://{OUT}/html/index.html")


if __name__ == "__main__":
    main()
