# SPDX-License-Identifier: Apache-2.0
"""What the pages name exists.

In: every Markdown page and the sources. Out: a link, file, test, `make` target or variable, command, flag, configuration key,
metric or other name that a page mentions and the tree does not have. Nothing is run: flags come from clap's and Go's
definitions, keys from serde's, targets from the Makefile. Names of other projects stand in scripts/page-names.txt, with a reason.
"""

import fnmatch
import os
import re

from .tree import Tree

ALLOWED = "scripts/page-names.txt"
THIS = "scripts/checks/pages.py"
FRONT, FRONT_WORDS_MAX, FRONT_COLUMNS_MAX = "README.md", 500, 110
WORDS_MAX = 75_000  # as `wc -w` counts them, of all pages of the root and of docs/
# All pages are in plain words, in lines of this length. An example in one span may be longer, as a row of a table may.
HOUSE_WORDS = re.compile(r"\b(short ways? in|short cuts?|somebody|nobody|anew|reckons?|whose|whoever)\b", re.I)
PLAIN_COLUMNS_MAX, EXAMPLE = 140, re.compile(r"Example: `[^`]*`")
CHANGES, BULLET = "CHANGELOG.md", re.compile(r"^- .*\n(?:  .*\n){2,}", re.M)  # a bullet of more than two lines
LABORATORY = "bench/"
MADE = ("out/", "target/")  # what builds and runs leave behind
ENTRY = "docs/design/README.md"  # one line for each page beside it
ENDINGS = re.compile(r"\.(rs|go|py|sh|md|toml|yaml|proto|c|h|service)$")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"(?<![\w./-])[A-Za-z]\w*(?![\w/])")
IS_NAME = re.compile(r"\w_\w|[a-z][A-Z]")  # snake_case or CamelCase: a plain word may be English
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
KEY = re.compile(r"(?:^|[{,])\s*([A-Za-z][\w-]*)\s*=(?!=)", re.M)
SET_KEY = re.compile(r'(?:^|[,{] )([A-Za-z][\w-]*) = (?:["\[{]|true\b|false\b|\d)')
CLAP = re.compile(r"#\[arg\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\]\s*(?:///[^\n]*\s*|#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(\w+)\s*:")
GO_FLAG = re.compile(r'\.(?:String|Bool|Int|Uint|Duration|Float64|Func|Text)?(?:Var)?\((?:&[\w.]+, )?"([a-z][a-z0-9-]*)", ')
SUBCOMMANDS = re.compile(r"derive\([^)]*\bSubcommand\b[^)]*\)\]\s*(?:pub(?:\([^)]*\))?\s+)?enum \w+ \{(.*?)^\}", re.M | re.S)
FIELD = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:r#)?([a-z]\w*): ", re.M)
VARIANT = re.compile(r"^    ([A-Z]\w*)", re.M)
QUOTED = re.compile(r'"([a-z][\w-]*)"')
METRIC = re.compile(r'\bdesc\("(\w+)"')


def kebab(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").lower()


class Known:
    """What the sources define."""

    def __init__(self, tree):
        self.files = set(tree.files)
        self.folders = {"/".join(path.split("/")[:depth]) for path in self.files for depth in range(1, path.count("/") + 1)}
        self.tops = {path.split("/")[0] for path in self.files}
        self.ends = {end for path in self.files | self.folders for end in self.ends_of(path)}
        self.texts = tree.files
        sources = [(path, text) for path, text in tree.files.items() if not path.endswith(".md") and path not in (THIS, ALLOWED)]
        self.words = {word for _, text in sources for word in re.findall(r"[A-Za-z_]\w*", text)}
        self.dashed = {word for _, text in sources for word in re.findall(r"[A-Za-z]\w*(?:-\w+)+", text)}
        self.words |= {re.split(r"[.]", part)[0] for path in self.files for part in path.split("/")}
        self.words |= {"ktsn_" + name for _, text in sources for name in METRIC.findall(text)}
        self.make(tree.files.get("Makefile", ""))
        self.keys = self.keys_of([text for path, text in sources if path.endswith(".rs") and "Deserialize" in text])
        self.keys |= {key for path, text in sources if path.endswith(".toml") for key in KEY.findall(text)}
        self.keys |= {key for path, text in sources if path.endswith(".go") for key in re.findall(r'`json:"([\w-]+)', text)}
        self.commands, self.flags = {}, {}
        for path, text in sources:
            self.command_line(path, text)

    @staticmethod
    def ends_of(path):
        """The path without its first folders, one after the other: pages leave them out."""
        parts = path.split("/")
        return ["/".join(parts[first:]) for first in range(len(parts))]

    def make(self, text):
        self.targets = set(re.findall(r"^([\w-]+):", text, re.M))
        self.variables = set(re.findall(r"\$\((?:if \$\()?([A-Z_]+)", text)) | set(re.findall(r"\$\(if \$\(([A-Z_]+)", text))

    @staticmethod
    def keys_of(texts):
        names = {name for text in texts for pattern in (FIELD, QUOTED) for name in pattern.findall(text)}
        names |= {name for text in texts for name in VARIANT.findall(text)}
        return names | {kebab(name) for name in names}

    def command_line(self, path, text):
        """Flags by program, subcommands of `ktsn`."""
        # The laboratory's commands are called as those of `ktsn`.
        program, found = "ktsn" if path.startswith(LABORATORY) else path.split("/")[0], set()
        if path.endswith(".rs"):
            for options, field in CLAP.findall(text):
                named = re.search(r'\blong\s*=\s*"([\w-]+)"', options)
                if named or re.search(r"\blong\b", options):
                    found.add(named[1] if named else kebab(field))
            # The commands of `ktsn schedule` stand in schedule.rs, those of `ktsn` in main.rs.
            parent = os.path.basename(path).removesuffix(".rs").replace("main", program)
            for body in SUBCOMMANDS.findall(text):
                self.commands.setdefault(parent, set()).update(map(kebab, VARIANT.findall(body)))
        elif path.endswith(".go"):
            # One set for all programs of the module: a flag may be defined in a package that two of them use.
            program, found = "k8s", set(GO_FLAG.findall(text)) | set(re.findall(r'"--([a-z][a-z0-9-]*)"', text))
        elif path.endswith((".py", ".sh")) or path == ".ci/run":
            program, found = path, set(re.findall(r'["\s(](?:--([a-z][a-z0-9-]*))["\s)=|]', text))
        self.flags.setdefault(program, set()).update(found)

    def path(self, name, page):
        """Whether a page's path leads to a file or folder: from the root, from the page, or with first folders left out."""
        if name.startswith(MADE) or (name := name.rstrip("/")) in self.ends:
            return True
        beside = os.path.normpath(os.path.join(os.path.dirname(page), name))
        return beside in self.files or beside in self.folders or "*" in name and bool(fnmatch.filter(self.files, f"*{name}"))


def allowed_names(text):
    """name → reason, from `name reason` on each line."""
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows}


def check(tree):
    if not any(path.endswith(".md") for path in tree.files):
        return []
    known, allowed = Known(tree), allowed_names(tree.files.get(ALLOWED, ""))
    faults, used = [], set()
    for path, text in tree.sources(".md"):
        for line, what, name in page_faults(known, path, text):
            if name in allowed:
                used.add(name)
            else:
                faults.append(f"{path}:{line}: {what}: {name}")
        faults += form(path, text)
    words = sum(len(text.split()) for path, text in tree.sources(".md") if "/" not in path or path.startswith("docs/"))
    if words > WORDS_MAX:
        faults.append(f"docs: all pages together have {words} words, at most {WORDS_MAX}: say it once, and shorter")
    if ENTRY in tree.files:
        named = {os.path.normpath(os.path.join(os.path.dirname(ENTRY), target)) for target in LINK.findall(tree.files[ENTRY])}
        faults += [f"{ENTRY}: no line for {path}" for path, _ in tree.sources(".md")
                   if os.path.dirname(path) == os.path.dirname(ENTRY) and path not in named | {ENTRY}]
    faults += [f"{ALLOWED}: {name} has no reason" for name, reason in allowed.items() if not reason]
    return faults + [f"{ALLOWED}: {name} is not needed any more: take it off" for name in sorted(set(allowed) - used)]


def page_faults(known, page, text):
    """(line, what is wrong, name) of each name that does not exist."""
    for fence in FENCE.finditer(text):
        for number, line in enumerate(fence[2].splitlines(), text.count("\n", 0, fence.start()) + 2):
            if fence[1] == "console" and (found := re.match(r"\s*[#$] (.+)", line)):
                yield from at(number, command(known, re.split(r"\s{2,}#", found[1])[0]))
            elif fence[1] == "toml":
                yield from at(number, keys(known, KEY.findall(line.split("#")[0])))
    prose = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    is_keys = False
    for number, line in enumerate(prose.splitlines(), 1):
        yield from at(number, links(known, page, line))
        for span in SPAN.findall(line):
            yield from at(number, in_span(known, page, span))
        # A table of keys says so in its first heading.
        is_keys = line.startswith("|") and (is_keys or bool(re.match(r"\| *(\w+ )?(field|key)s? *\|", line, re.I)))
        if is_keys:
            yield from at(number, keys(known, [name for name in SPAN.findall(line.split("|")[1]) if re.fullmatch(r"[\w-]+", name)]))


def at(number, faults):
    return ((number, what, name) for what, name in faults)


def in_span(known, page, span):
    if re.match(r"make [a-z]|(\S*/)?(ktsnd?|ktsn-[\w-]+|tsn-cni|[\w/]+\.(py|sh)) \S|\[?--[a-z]", span):
        yield from command(known, span)
    yield from keys(known, SET_KEY.findall(span))
    for token in re.split(r"[\s,;()]+", re.sub(r"\{[^}]*\}", lambda inner: inner[0].replace(",", "\0"), span)):
        yield from files(known, page, token.replace("\0", ","))
    for name in NAME.findall(span):
        if IS_NAME.search(name) and name not in known.words and f"{name}_ns" not in known.words:
            yield "no source has this name", name


def files(known, page, token):
    """A token of a span that is a path; `path::test` names a test in that file."""
    name, _, test = token.partition("::")
    name = re.sub(r":\d+(-\d+)?$", "", name)
    is_path = ENDINGS.search(name) or re.fullmatch(r"[\w-]+/", name) or "/" in name and name.split("/")[0] in known.tops
    if not is_path or re.search("…|NAME|TARGET", name) or name.startswith(("/", "~", ".")):
        return
    inner = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
    for one in [inner[1] + part + inner[3] for part in inner[2].split(",")] if inner else [name]:
        if not known.path(one, page):
            yield "no such file or folder", one
        elif test and one in known.texts and not re.search(rf"\b{re.escape(test)}\b", known.texts[one]):
            yield f"{one} has no such test", test


def command(known, line):
    """Faults of a command of ours; of other programs nothing is known."""
    ours = re.split(r"\s--(?:\s|$)", line, maxsplit=1)
    words = [word for word in ours[0].split() if not re.match(r"sudo$|[A-Z_]+=", word)]
    if len(ours) > 1:
        yield from command(known, ours[1])
    if not words:
        return
    program = words[0].split("/")[-1]
    if program == "make":
        yield from make(known, ours[0].split())
        return
    if words[0].lstrip("[").startswith("--"):  # flags alone: of any program of ours
        flags = {flag for flags in known.flags.values() for flag in flags}
    elif program in ("ktsn", "ktsnd"):
        flags = known.flags.get(program, set())
        if program == "ktsn":
            yield from subcommand(known, words)
    elif program == "tsn-cni" or program.startswith("ktsn-"):
        flags = known.flags.get("k8s", set()) | known.flags.get("sim", set())
    else:
        flags = next((flags for path, flags in known.flags.items() if path.endswith((".py", ".sh")) and path.endswith(words[0])), None)
    if flags is not None:
        for flag in FLAG.findall(" ".join(words)):
            if flag not in flags | {"help", "version"}:
                yield f"{program} has no such flag", f"--{flag}"


def subcommand(known, words):
    """The words up to the first that is no command's name, each a command of the one before it."""
    for parent, word in zip(["ktsn", *words[1:]], words[1:]):
        if parent not in known.commands or not re.fullmatch(r"[a-z][a-z-]*", word):
            return
        if word not in known.commands[parent]:
            yield f"{parent} has no such command", word
            return


def make(known, words):
    """Targets, then variables, whatever their values are."""
    targets = True
    for word in words[1:]:
        variable = re.match(r"([A-Z_]+)=", word)
        targets = targets and not variable
        if variable and variable[1] not in known.variables:
            yield "the Makefile reads no such variable", variable[1]
        elif targets and re.fullmatch(r"[a-z][a-z0-9-]*", word) and word not in known.targets:
            yield "the Makefile has no such target", word


def keys(known, names):
    # Objects of Kubernetes and schedules have readers of their own: a name with a dash is not there by chance.
    return (("no configuration key", name) for name in names if name not in known.keys | known.dashed)


def links(known, page, line):
    for target in LINK.findall(line):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), place)) if place else page
        if path not in known.files and path not in known.folders and not path.endswith(".png"):
            yield "a link leads nowhere", target
        elif anchor and anchor not in anchors(known.texts.get(path, "")):
            yield "a link's heading does not exist", target


def anchors(text):
    """What GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
            for heading in headings}


def form(path, text):
    """The front page is short, a bullet of the change log, too; pages are in plain words."""
    faults = []
    if path == FRONT:
        if (words := len(text.split())) > FRONT_WORDS_MAX:
            faults.append(f"{path}: {words} words, at most {FRONT_WORDS_MAX}")
        faults += [f"{path}:{number}: {len(line)} columns, at most {FRONT_COLUMNS_MAX}"
                   for number, line in enumerate(text.splitlines(), 1) if len(line) > FRONT_COLUMNS_MAX]
    if path == CHANGES:
        faults += [f"{path}:{text.count(chr(10), 0, found.start()) + 1}: a bullet has two lines at most" for found in BULLET.finditer(text)]
    for number, line in enumerate(FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text).splitlines(), 1):
        faults += [f"{path}:{number}: not plain: {found[0]}" for found in HOUSE_WORDS.finditer(line)]
        if len(line) > PLAIN_COLUMNS_MAX and not line.startswith("|") and not EXAMPLE.fullmatch(line):
            faults.append(f"{path}:{number}: {len(line)} columns, at most {PLAIN_COLUMNS_MAX}")
    return faults


BENCH = '''#[derive(Subcommand)]
enum Command {
    Report(Args),
}
struct Args {
    /// Where
    #[arg(long)]
    page: String,
}
'''

RUST = '''#[derive(Deserialize)]
struct Raw {
    pub link_speed: Option<u64>,
}
#[derive(Subcommand)]
enum Command {
    Run(Args),
    Schedule(Args),
}
struct Args {
    /// Where
    #[arg(long, value_name = "DIR")]
    pub run_dir: String,
}
fn a_frame_leaves() {}
'''
SOURCES = {"ktsn/src/main.rs": RUST, "bench/src/main.rs": BENCH, "Makefile": "test: build\n\t@x $(ONLY) $(if $(MINUTES),-m)\n",
           "ktsn/src/schedule.rs": "#[derive(Subcommand)]\nenum Command {\n    Show(Args),\n}\n", "k8s/a.go": 'set.StringVar(&c.at, "listen", "")\ndesc("up", "x")\n', "scripts/a.py": 'add("--stay")\n'}


def tree_of(page, path="docs/a.md", names=None):
    return Tree({**SOURCES, path: page, **({} if names is None else {ALLOWED: names})})


GOOD = [tree_of(text) for text in (
    "`make test ONLY=x` and `make test MINUTES=3`", "`ktsn run --run-dir D -- prog --unknown`", "`link_speed = 1` `link-speed = 1`",
    "`ktsn_up` `ktsn schedule show FILE` `ktsn report --page P`", "`ktsn-node-agent --listen X`", "`scripts/a.py --stay` `main.rs` `src/main.rs` `out/demo/x.json`", "`kubectl apply --server-side`",
    "`ktsn/src/main.rs::a_frame_leaves`", "## A `b` c\n[x](#a-b-c) [y](../ktsn/src/main.rs) [z](https://x.invalid)", "`ktsn/{src,src/main.rs}`",
    "```console\n# ktsn run --run-dir D   # text --nothing\n```\n```toml\nlink_speed = 1  # other = 2\n```\n", "| Port field | x |\n|---|---|\n| `link_speed` | `x y` |\n")]
GOOD.append(tree_of("Example: `" + "a" * 141 + "`\n"))
GOOD.append(Tree({**tree_of("[x](x.md)", ENTRY).files, "docs/design/x.md": ""}))
GOOD.append(tree_of("`hostPID`", names="hostPID a name of Kubernetes\n"))
BAD = [
    ("a target", tree_of("`make tset`"), "no such target: tset"),
    ("a variable of make", tree_of("`make test ONYL=x`"), "no such variable: ONYL"),
    ("a flag", tree_of("`ktsn run --run-dri D`"), "no such flag: --run-dri"),
    ("a flag alone", tree_of("`--nothing N`"), "no such flag: --nothing"),
    ("a flag in a block", tree_of("```console\n# target/release/ktsn run --run-dri D\n```\n"), "docs/a.md:2: ktsn has no such flag"),
    ("a flag of Go", tree_of("`ktsn-controller --lsten X`"), "no such flag: --lsten"),
    ("a flag of a script", tree_of("`scripts/a.py --go`"), "no such flag: --go"),
    ("a command", tree_of("`ktsn rnu x`"), "no such command: rnu"),
    ("a command of a command", tree_of("`ktsn schedule shwo FILE`"), "schedule has no such command: shwo"),
    ("a key in a block", tree_of("```toml\nlink_sped = 1\n```\n"), "configuration key: link_sped"),
    ("a key in the text", tree_of('`speed-of-link = "x"`'), "configuration key: speed-of-link"),
    ("a key in a table", tree_of("| Port field | x |\n|---|---|\n| `speed` | x |\n"), "docs/a.md:3: no configuration key: speed"),
    ("a metric", tree_of("`ktsn_pu`"), "no source has this name: ktsn_pu"),
    ("a type", tree_of("`ClockMap`"), "no source has this name: ClockMap"),
    ("a file", tree_of("`ktsn/src/mian.rs`"), "no such file or folder: ktsn/src/mian.rs"),
    ("a folder", tree_of("`synth/`"), "no such file or folder: synth/"),
    ("a file of several", tree_of("`ktsn/{src,srv}`"), "no such file or folder: ktsn/srv"),
    ("a test", tree_of("`ktsn/src/main.rs::a_frame_stays`"), "no such test: a_frame_stays"),
    ("a link", tree_of("[x](b.md)"), "leads nowhere: b.md"),
    ("a heading", tree_of("# A\n[x](#b)"), "heading does not exist: #b"),
    ("an exception without a reason", tree_of("`hostPID`", names="hostPID\n"), "has no reason"),
    ("an exception that is not needed", tree_of("x", names="hostPID a name of Kubernetes\n"), "take it off"),
    ("too many words in all pages", tree_of("a " * 75_001), "75001 words, at most 75000"),
    ("a page that the entry page does not name", Tree({**tree_of("x", ENTRY).files, "docs/design/x.md": ""}), "no line for docs/design/x.md"),
    ("a long front page", tree_of("a " * 501, FRONT), "501 words"),
    ("a wide front page", tree_of("a" * 111, FRONT), "111 columns"),
    ("a long bullet", tree_of("- a\n  b\n  c\n", CHANGES), "two lines at most"),
    ("a house word", tree_of("the short way in", "SECURITY.md"), "not plain: short way in"),
    ("a wide line", tree_of("a" * 141, "SECURITY.md"), "141 columns"),
]
