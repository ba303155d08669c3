# SPDX-License-Identifier: Apache-2.0
"""The commands that a page shows, the lines that it shows below them, and the files that it shows.

In: a page's text. Out: its commands in their order. Pure but for `fill`.
"""

import re
import shutil

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
PROMPT = re.compile(r"^\s*[#$] (?=\S)")
# A comment begins after two spaces or more: one space before a sharp may stand in a command.
COMMENT = re.compile(r"(?: {2,}|\t)#.*$")
NUMBER = re.compile(r"\d[\d.,]*")


class Command:
    """Its text without prompt and comment, and the lines shown below it. A script is one command."""

    def __init__(self, text):
        self.text, self.shown = text, []

    @property
    def first(self):
        """Its first line: how docs/commands.toml names it."""
        return self.text.splitlines()[0]


class Page:
    """A page's commands, and its fences of other kinds by their language."""

    def __init__(self, path, text):
        self.path, self.commands, self.fences = path, [], []
        for language, inner in FENCE.findall(text):
            if language == "console":
                self.read(inner)
            elif language == "sh":
                self.commands.append(Command(inner.strip()))
            else:
                self.fences.append((language, inner))

    def read(self, inner):
        goes_on = False
        for line in inner.splitlines():
            if goes_on:
                self.commands[-1].text += "\n" + line.rstrip()
            elif PROMPT.match(line):
                self.commands.append(Command(COMMENT.sub("", PROMPT.sub("", line)).rstrip()))
            elif line.strip() and self.commands:
                self.commands[-1].shown.append(line.strip())
            goes_on = bool(self.commands) and self.commands[-1].text.endswith("\\") and (goes_on or bool(PROMPT.match(line)))

    def fill(self, place, files, root, programs):
        """Makes the reader's directory: the tree's examples, the programs, and the files that the page shows.

        `files`: a name, and which fence of the page it is, counted from 1 among those of its language: `yaml 1`. Or `= TEXT`."""
        (place / "target").mkdir()
        (place / "target/release").symlink_to(programs)
        shutil.copytree(root / "examples", place / "examples")
        for name, source in files.items():
            if source.startswith("= "):
                text = source[2:]
            else:
                language, number = source.split()
                text = [inner for kind, inner in self.fences if kind == language][int(number) - 1]
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
            (place / name).chmod(0o755 if text.startswith("#!") else 0o644)


def shape(line):
    """The line as an expression: any number for a number, any text for an ellipsis, any space for spaces."""
    parts = [re.sub(r"(?:\\ )+", r"\\s+", re.escape(NUMBER.sub("\0", part))).replace("\0", r"[\d.,]+").replace("\\\0", r"[\d.,]+") for part in line.split("…")]
    return re.compile(".*".join(part.strip() for part in parts))


def matches(shown, printed):
    """Whether a line of what was printed has the shape of the shown one."""
    wanted = shape(shown.strip())
    return any(wanted.search(line) for line in printed.splitlines())
