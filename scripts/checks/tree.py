# SPDX-License-Identifier: Apache-2.0
"""What every check reads: the project's files and cargo's own description of the packages.

In: a git checkout, or plain dictionaries in a self-test. Out: `Tree`. Never: a build or the network.
"""

import functools
import json
import os
import pathlib
import re
import subprocess


class Tree:
    """Files by path, packages by name. A self-test passes dictionaries; `Tree.of` reads the real tree."""

    def __init__(self, files, packages=(), history=None, go_licences=None, octets=None):
        self.files = files
        self.octets = octets or {}  # path -> size, of files that are no text, too
        self.go_licences = go_licences or {}  # module -> text of its licence
        self.packages = {package["id"]: package for package in packages}
        self.history = history or {}  # path -> contents it had in earlier commits

    @classmethod
    def of(cls, root):
        def git(*arguments):
            return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout

        # Files not yet committed count too: a fault is cheapest to mend before the commit.
        names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        files, octets = {}, {}
        for name in filter(None, names):
            path = pathlib.Path(root) / name
            if path.is_symlink():
                continue  # what it leads to is a file of the tree, or is not ours
            try:
                octets[name] = path.stat().st_size
                files[name] = path.read_text()
            except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
                continue  # deleted, a submodule, or captured bytes: nothing to check as text
        ratchet = "scripts/long-files.txt"
        commits = git("rev-list", "HEAD", "--", ratchet).split()
        history = {ratchet: [git("show", f"{commit}:{ratchet}") for commit in commits]}
        return cls(files, metadata(root), history, licences_of_go(root), octets)

    def sources(self, *suffixes):
        """(path, text) of the files with one of these suffixes."""
        return [(path, text) for path, text in sorted(self.files.items()) if path.endswith(suffixes)]

    @functools.cached_property
    def members(self):
        """The workspace's own packages by name."""
        return {p["name"]: p for p in self.packages.values() if p["source"] is None}


def metadata(root):
    """Packages from `cargo metadata`; each gets `closure_of`: ids of its direct normal dependencies."""
    cargo = os.environ.get("CARGO", "cargo")
    host = re.search(r"^host: (\S+)$", subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout, re.M)
    command = [cargo, "metadata", "--format-version", "1", "--locked"]

    def run(*more):
        return json.loads(subprocess.run([*command, *more], check=True, cwd=root, stdout=subprocess.PIPE, text=True).stdout)

    # Packages of all platforms (Cargo.lock's licences), edges of this one (what is really linked).
    packages = run()["packages"]
    nodes = {node["id"]: node for node in run("--filter-platform", host[1])["resolve"]["nodes"]}
    for package in packages:
        links = nodes.get(package["id"], {"deps": []})["deps"]
        package["links"] = [d["pkg"] for d in links if any(kind["kind"] is None for kind in d["dep_kinds"])]
    return packages


def package(name, dependencies=(), source=None, license="MIT", kind="lib"):
    """A package as the checks see it, for self-tests; `dependencies` are names of packages or (name, kind)."""
    pairs = [d if isinstance(d, tuple) else (d, None) for d in dependencies]
    return {"id": name, "name": name, "source": source, "license": license, "version": "1.0.0",
            "targets": [{"kind": [kind]}], "links": [n for n, k in pairs if k is None],
            "dependencies": [{"name": n, "kind": k, "source": None} for n, k in pairs]}


def licences_of_go(root):
    """Text of the licence of each module that the Go programs or their tests link."""
    template = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}"
    listed = subprocess.run(["go", "list", "-deps", "-test", "-f", template, "./..."], check=True, cwd=pathlib.Path(root) / "k8s",
                            stdout=subprocess.PIPE, text=True, env=os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}).stdout
    found = {}
    for module, directory in {tuple(line.split("\t")) for line in listed.splitlines() if line}:
        names = [path for path in sorted(pathlib.Path(directory).iterdir())
                 if re.match(r"(LICEN[CS]E|COPYING)", path.name, re.I) and path.is_file()]
        found[module] = "\n".join(path.read_text(errors="replace") for path in names)
    return found


def is_generated(text):
    """Whether a Go file says that a program wrote it, in the way that Go's tools look for."""
    return bool(re.search(r"^// Code generated .* DO NOT EDIT\.$", text, re.M))


RUST_TOKEN = re.compile(r'''
    //[^\n]*
  | /\*.*?\*/
  | b?r(?P<hash>\#*)".*?"(?P=hash)
  | b?"(?:\\.|[^"\\])*"
  | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'
''', re.X | re.S)


def rust_code(text):
    """Rust with comments and the insides of strings blanked; every line keeps its number."""
    def blank(match):
        found = match[0]
        keep = '"' if found[-1] == '"' and not found.startswith("/") else " "
        inner = "".join(c if c == "\n" else " " for c in found[1:-1])
        return keep + inner + (keep if len(found) > 1 else "")
    return RUST_TOKEN.sub(blank, text)
