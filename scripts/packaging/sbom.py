# SPDX-License-Identifier: Apache-2.0
"""What is in a package, as CycloneDX 1.5.

In: cargo's and Go's own records (`cargo metadata`, Cargo.lock, the module list that Go writes into each program), dpkg's for the shared
libraries of an image. Out: one document with a component for each crate, module and Debian package that is linked or copied, with its
version, package URL and, where the source states it, licence and SHA-256. The same input gives the same octets.
"""

import datetime
import functools
import hashlib
import json
import os
import re
import subprocess
import tomllib
import uuid


@functools.cache
def cargo():
    """(packages by id, ids of what each links) of cargo's own description, for this machine."""
    host = re.search(r"^host: (\S+)$", told("rustc", "-vV"), re.M)
    described = json.loads(told(os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked", "--filter-platform", host[1]))
    links = {node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
             for node in described["resolve"]["nodes"]}
    return {package["id"]: package for package in described["packages"]}, links


@functools.cache
def checksums():
    with open("Cargo.lock", "rb") as lock:
        return {(package["name"], package["version"]): package.get("checksum") for package in tomllib.load(lock)["package"]}


def told(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates(*programs):
    """Components of the crates that these packages of the workspace link. Procedural macros run in the compiler and link nothing."""
    packages, links = cargo()
    todo = [key for key, package in packages.items() if package["name"] in programs and package["source"] is None]
    seen = set(todo)
    while todo:
        for link in links[todo.pop()]:
            if link not in seen and all(target["kind"] != ["proc-macro"] for target in packages[link]["targets"]):
                seen.add(link)
                todo.append(link)
    return [crate(packages[key]) for key in seen]


def crate(package):
    name, version = package["name"], package["version"]
    found = component("library", name, version, f"pkg:cargo/{name}@{version}")
    if package["license"]:
        # The old form of crates.io has a slash for OR.
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if digest := checksums().get((name, version)):
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return found


def modules(*programs):
    """Components of the Go modules that these programs were linked from."""
    lines = [line.split("\t") for program in programs for line in told("go", "version", "-m", str(program)).splitlines()]
    return [component("library", line[2], line[3], f"pkg:golang/{line[2]}@{line[3]}") for line in lines if line[1:2] == ["dep"]]


def debian(*files):
    """Components of the Debian packages that these files come from."""
    # With a merged /usr the package may have installed the file under either name.
    names = {path: {str(path), os.path.realpath(path), re.sub("^/usr", "", os.path.realpath(path))} for path in files}
    if not names:
        return []
    found = subprocess.run(["dpkg", "-S", *sorted(set().union(*names.values()))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True, check=False).stdout
    owners = {path: owner.split(",")[0] for owner, _, path in (line.rpartition(": ") for line in found.splitlines())}
    for path, known in names.items():
        if not known & owners.keys():
            raise ValueError(f"{path}: no Debian package has it")
    packages = sorted({owners[name] for known in names.values() for name in known if name in owners})
    rows = [row.split() for row in told("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n", *packages).splitlines()]
    return [component("library", name, version, f"pkg:deb/debian/{name}@{version}?arch={machine}") for name, version, machine in rows]


def component(kind, name, version, purl):
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def document(name, version, epoch, components, files):
    """The document of one product. `files`: the archives that it describes, of which each is named with its SHA-256."""
    listed = sorted({found["bom-ref"]: found for found in components}.values(), key=lambda found: found["bom-ref"])
    product = component("application", name, version, f"pkg:generic/{name}@{version}") | {"licenses": [{"expression": "Apache-2.0"}]}
    product["components"] = [{"type": "file", "bom-ref": path.name, "name": path.name,
                              "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]} for path in files]
    made = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "component": product},
            "components": listed}
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))}"
    return json.dumps(made, indent=1, sort_keys=True) + "\n"
