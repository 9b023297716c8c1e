"""Stand-ins for container engines: programs that keep images as files, and are strict about layers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

_DOCKER = """#!{python} -ES
import contextlib, fcntl, gzip, hashlib, io, json, os, sys, tarfile
STORE = {store!r}
PREFIX = {prefix!r}

def files(kind):
    return sorted(name.replace("%", "/") for name in os.listdir(os.path.join(STORE, kind)))

def path(kind, name):
    return os.path.join(STORE, kind, name.replace("/", "%"))

def text(kind, name):
    with open(path(kind, name)) as file:
        return file.read()

def write(kind, name, data):
    with open(path(kind, name), "w") as file:
        file.write(data)

def full(name):
    return name if not PREFIX or name.startswith((PREFIX, "sha256:")) else PREFIX + name

def identity(name):
    name = full(name)
    if name in files("tags"):
        return text("tags", name)
    if name in files("images"):
        return name
    sys.exit(f"No such image: {{name}}")

def pull(name):
    try:
        with open(os.path.join(STORE, "registry", name), "rb") as file:
            write("tags", full(name), load(file.read()))
    except FileNotFoundError:
        sys.exit(f"manifest for {{name}} not found")

def load(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        read = {{m.name: archive.extractfile(m).read() for m in archive if m.isreg()}}
    (entry,) = json.loads(read["manifest.json"])
    config = read[entry["Config"]]
    layers = json.loads(config)["rootfs"]["diff_ids"]
    held = {{layer for name in files("images") for layer in json.loads(text("images", name))}}
    for layer, name in zip(layers, entry["Layers"]):
        data = read.get(name, b"")
        data = gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data
        if "sha256:" + hashlib.sha256(data).hexdigest() != layer and layer not in held:
            sys.exit(f"layer {{layer}} is neither here nor in the archive")
    made = "sha256:" + hashlib.sha256(config).hexdigest()
    write("images", made, json.dumps(layers))
    return made

def load_and_tag(data):
    made = load(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        ((tag,),) = [entry["RepoTags"] for entry in json.load(archive.extractfile("manifest.json"))]
    write("tags", full(tag), made)
    print("Loaded image:", tag)

def remove(name):
    name, made = full(name), identity(name)
    if name in files("tags"):
        os.unlink(path("tags", name))
    if made not in [text("tags", tag) for tag in files("tags")]:
        os.unlink(path("images", made))

with open(os.path.join(STORE, "lock"), "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    words = [word for word in sys.argv[1:] if word not in ("--quiet", "image")]
    if words[0] == "load":
        load_and_tag(sys.stdin.buffer.read())
    elif words[0] == "pull":
        pull(words[1])
    elif words[0] == "tag":
        made = identity(words[1])
        write("tags", full(words[2]), made)
    elif words[0] == "rm":
        remove(words[1])
    elif words[:2] == ["ls", "-aq"]:
        print(*files("images"), sep="\\n")
    elif words[0] == "ls":
        print(*[tag for tag in files("tags") if tag.startswith(full(words[-1]) + ":")], sep="\\n")
    elif words[0] == "inspect":
        for name in words[3:]:
            print(identity(name), *([text("images", identity(name))] if "json" in words[2] else []))
    else:
        sys.exit("no such command")
"""
# Its image is what the archive held: a build that reads half an archive makes half an image.
_APPTAINER = """#!/bin/sh
[ "$1 $2" = "build --fix-perms" ] || exit 64
echo "$3" >>{store}/built
[ ! -e "$3" ] || exit 65
cat "${{4#docker-archive:}}" >"$3"
"""


def extract_member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        return tar.extractfile(name).read()  # type: ignore[union-attr]


class MadeUpEngine:
    """An engine `docker`, `podman` or `apptainer` on this machine."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = folder
        for part in ("bin", "images", "registry", "tags"):
            (folder / part).mkdir(parents=True)
        prefix = "localhost/" if name == "podman" else ""
        text = _APPTAINER if name == "apptainer" else _DOCKER
        program = folder / "bin" / name
        program.write_text(text.format(python=sys.executable, store=str(folder), prefix=prefix))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")

    def publish(self, name: str, archive: Path) -> None:
        """Let a registry have an image under a name."""
        shutil.copy(archive, self.store / "registry" / name)

    def tag(self, archive: Path, name: str) -> None:
        """Load an image, as the user of the node does, under a name that bench does not use."""
        (made,) = json.loads(extract_member(archive, "manifest.json"))
        config = hashlib.sha256(extract_member(archive, made["Config"])).hexdigest()
        (self.store / "images" / f"sha256:{config}").write_text(
            json.dumps(json.loads(extract_member(archive, made["Config"]))["rootfs"]["diff_ids"])
        )
        (self.store / "tags" / name).write_text(f"sha256:{config}")

    @property
    def images(self) -> set[str]:
        return {path.name for path in (self.store / "images").iterdir()}

    @property
    def tags(self) -> dict[str, str]:
        """The identity of each image, by its tag."""
        return {path.name: path.read_text() for path in (self.store / "tags").iterdir()}

    @property
    def builds(self) -> list[str]:
        return (self.store / "built").read_text().splitlines()
