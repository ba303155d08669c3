# SPDX-License-Identifier: Apache-2.0
"""The test's own tools, held against bad examples before anything is built on them."""

import io
import pathlib
import tarfile
import tempfile

from . import checks, image


def refuses(text, word):
    """Whether an image with this Containerfile is refused, and the refusal names the reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "Containerfile")
        file.write_text(text)
        try:
            image.build(file, pathlib.Path(folder), "r:1", pathlib.Path(folder, "i.tar"))
        except image.Refused as refused:
            return word in str(refused)
    return False


def raises(name):
    raise checks.Skip(name, "why")


def image_holds_what_it_says():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "bin").mkdir()
        (folder / "bin/a").write_text("A")
        (folder / "bin/a").chmod(0o755)
        (folder / "bin/b").symlink_to("a")
        file = folder / "Containerfile"
        file.write_text('# c\nFROM scratch\nCOPY bin/ /usr/bin/\nCOPY bin/a /\nUSER 7:7\nENTRYPOINT ["/usr/bin/a"]\n')
        layer, config = image.follow(file, folder)
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            members = {member.name: member for member in tar.getmembers()}
        assert members["usr/bin/a"].mode == 0o755 and members["usr/bin/b"].linkname == "a" and "a" in members, members
        assert (config["User"], config["Entrypoint"]) == ("7:7", ["/usr/bin/a"]), config
        sizes = {image.build(file, folder, "r:1", folder / f"{n}.tar") for n in "xy"}
        assert len(sizes) == 1 and (folder / "x.tar").read_bytes() == (folder / "y.tar").read_bytes()


def run():
    """Raises at the first tool that does not do what it is for."""
    for text, word in (("FROM debian\n", "debian"), ("FROM scratch\nRUN true\n", "RUN"), ("FROM scratch\nCOPY no /no\n", "no such file"),
                       ("FROM scratch\nENTRYPOINT sh\n", "ENTRYPOINT"), ("FROM scratch\nCOPY --from=x a b\n", "--from")):
        assert refuses(text, word), f"not refused: {text!r}"
    image_holds_what_it_says()
    counted = checks.Checks()
    counted.done = [{"outcome": outcome} for outcome in ("passed", "failed", "skipped")]
    assert counted.closing() == "1 passed, 1 failed, 1 skipped"
    assert [checks.tried(raises, name)[1] for name in ("cluster_programs_missing", "no_such_skip")] == ["skipped", "failed"]
