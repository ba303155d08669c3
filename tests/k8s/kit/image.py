# SPDX-License-Identifier: Apache-2.0
"""Container images without a registry and without a builder's privileges.

In: a Containerfile that begins with FROM scratch, a build context. Out: an archive that `ctr images import` and `podman load`
take, the same octets for the same input. It follows ARG, COPY, ENV, USER, WORKDIR, ENTRYPOINT, CMD, LABEL and EXPOSE, and
refuses every other instruction by name: an image is what its Containerfile says, or there is none.
"""

import hashlib
import io
import json
import pathlib
import platform
import re
import shlex
import subprocess
import tarfile

EPOCH = "1970-01-01T00:00:00Z"
# As the image format calls this machine.
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}.get(platform.machine(), platform.machine())
DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "tmp", "var")


class Refused(Exception):
    """What the Containerfile asks for and this does not do."""


def instructions(text):
    """(instruction, rest) of each line, continued lines joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [tuple(line.strip().split(None, 1)) for line in joined.splitlines() if line.strip()]


def words(rest):
    return json.loads(rest) if rest.startswith("[") else None


def entry(name, kind, mode, size=0, link="", owner=0):
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.size, made.linkname, made.mtime = kind, mode, size, link, 0
    made.uid = made.gid = owner
    return made


class Layer:
    """One layer: files, with the directories above them."""

    def __init__(self):
        self.octets, self.known = io.BytesIO(), set()
        self.tar = tarfile.open(fileobj=self.octets, mode="w")
        for name in DIRECTORIES:
            self.directory(name, 0o1777 if name == "tmp" else 0o755)

    def directory(self, name, mode=0o755):
        for parent in [*reversed(pathlib.PurePosixPath(name).parents), pathlib.PurePosixPath(name)]:
            if str(parent) not in (".", "/") and str(parent) not in self.known:
                self.known.add(str(parent))
                self.tar.addfile(entry(str(parent), tarfile.DIRTYPE, mode))

    def copy(self, source, place):
        """A file, a link, or what a directory holds."""
        if source.is_symlink():
            self._parents(place)
            self.tar.addfile(entry(place, tarfile.SYMTYPE, 0o777, link=str(source.readlink())))
        elif source.is_dir():
            self.directory(place)
            for below in sorted(source.iterdir()):
                self.copy(below, f"{place}/{below.name}".lstrip("/"))
        elif source.is_file():
            self._parents(place)
            data, mode = source.read_bytes(), 0o755 if source.stat().st_mode & 0o111 else 0o644
            self.tar.addfile(entry(place, tarfile.REGTYPE, mode, len(data)), io.BytesIO(data))
        else:
            raise Refused(f"COPY {source}: no such file")

    def _parents(self, place):
        if len(above := pathlib.PurePosixPath(place).parent.parts) > 0:
            self.directory("/".join(above))

    def close(self):
        self.tar.close()
        return self.octets.getvalue()


def follow(containerfile, context):
    """(layer, configuration) of a Containerfile."""
    layer, config = Layer(), {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/", "Labels": {}}
    for index, (instruction, *rest) in enumerate(instructions(containerfile.read_text())):
        rest = rest[0] if rest else ""
        match instruction.upper():
            case "FROM" if rest == "scratch" and index == 0:
                pass
            case "COPY" if not rest.startswith("--"):
                *sources, place = shlex.split(rest)
                for source in sources:
                    found = context / source
                    at = place.strip("/")
                    if found.is_file() and place.endswith("/"):
                        at = f"{at}/{found.name}".lstrip("/")
                    layer.copy(found, at)
            case "ENV":
                config["Env"] += shlex.split(rest)
            case "LABEL":
                config["Labels"] |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "USER":
                config["User"] = rest
            case "WORKDIR":
                config["WorkingDir"] = rest
            case "ENTRYPOINT" | "CMD" if words(rest):
                config["Entrypoint" if instruction.upper() == "ENTRYPOINT" else "Cmd"] = words(rest)
            case "EXPOSE":
                config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
            case _:
                raise Refused(f"{containerfile}: {instruction} {rest}: not followed here")
    return layer.close(), config


def build(containerfile, context, reference, archive):
    """Builds an image into `archive`; its size in octets."""
    layer, config = follow(containerfile, context)
    digest = hashlib.sha256(layer).hexdigest()
    described = json.dumps({"architecture": ARCHITECTURE, "os": "linux", "created": EPOCH, "config": config,
                            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                            "history": [{"created": EPOCH, "created_by": containerfile.name}]}).encode()
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as out:
        for member, data in ((name, described), (f"{digest}/layer.tar", layer), ("manifest.json", manifest)):
            out.addfile(entry(member, tarfile.REGTYPE, 0o644, len(data)), io.BytesIO(data))
    return len(layer)


def libraries(program):
    """The shared libraries that a program is linked with, its loader included; none for a static one."""
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        return []
    return sorted({pathlib.Path(found) for found in re.findall(r"(/\S+\.so[.\d]*)", told.stdout)})
