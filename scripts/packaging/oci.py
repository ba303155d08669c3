# SPDX-License-Identifier: Apache-2.0
"""One image as an archive that every container engine loads.

In: a layer, its configuration, a reference. Out: an OCI image layout in a tar file, with the manifest of `docker save` beside the index:
`docker load`, `podman load`, `ctr images import` and `kind load image-archive` take it. The same input gives the same octets.
"""

import gzip
import hashlib
import io
import json
import tarfile

EPOCH = "1970-01-01T00:00:00Z"
OCI = "application/vnd.oci.image"


def entry(name, data=None):
    made = tarfile.TarInfo(name)
    made.type, made.mode = (tarfile.REGTYPE, 0o644) if data is not None else (tarfile.DIRTYPE, 0o755)
    made.size, made.mtime = len(data or b""), 0
    return made


class Blobs:
    """The blobs of an image, each under its digest."""

    def __init__(self):
        self.blobs = {}

    def add(self, data, kind, **more):
        """The descriptor of a blob."""
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data), **more}


def write(archive, layer, config, reference, architecture):
    """Writes the archive of an image with one layer (an uncompressed tar). Returns the octets of the layer, unpacked."""
    blobs = Blobs()
    packed = blobs.add(gzip.compress(layer, 6, mtime=0), "layer.v1.tar+gzip")
    described = json.dumps({"architecture": architecture, "os": "linux", "created": EPOCH, "config": config,
                            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
                            "history": [{"created": EPOCH, "created_by": "Containerfile"}]}).encode()
    config = blobs.add(described, "config.v1+json")
    manifest = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": [packed]}).encode()
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference.rpartition(":")[2]}
    listed = blobs.add(manifest, "manifest.v1+json", annotations=names, platform={"architecture": architecture, "os": "linux"})
    files = {"index.json": json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [listed]}).encode(),
             "manifest.json": json.dumps([{"Config": place(config), "RepoTags": [reference], "Layers": [place(packed)]}]).encode(),
             "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    with tarfile.open(archive, "w") as out:
        for name in ("blobs", "blobs/sha256"):
            out.addfile(entry(name))
        for name, data in sorted({**blobs.blobs, **files}.items()):
            out.addfile(entry(name, data), io.BytesIO(data))
    return len(layer)


def place(descriptor):
    return f"blobs/{descriptor['digest'].replace(':', '/')}"
