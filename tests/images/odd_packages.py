"""Wheels and Debian packages with everything that makes layers odd, and the layer that pip makes of them."""

from __future__ import annotations

import base64
import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.images.normalise import normalise
from bench.packages.package_index import PackageFile
from tests.images.made_up_images import EPOCH

ENTRY_POINTS = "[console_scripts]\nodd-tool = odd.main:run\n[gui_scripts]\nodd-window = odd.main:run\n"
ODD: Mapping[str, tuple[bytes, int]] = {  # contents and modes
    "odd/__init__.py": (b"", 0o644),
    "odd/main.py": (b"def run():\n    return 0\n" * 10, 0o644),
    "odd/größe/данные 数据.txt": ("größe\n".encode() * 50, 0o644),
    f"odd/{'deep/' * 30}long-{'x' * 120}.json": (b'{"a": 1}\n' * 40, 0o644),
    "odd/lib/library.so": (bytes(range(256)) * 999, 0o755),
    "odd/same-1.bin": (b"same" * 100, 0o644),
    "odd/same-2.bin": (b"same" * 100, 0o755),
    "odd-1.0.data/scripts/script": (b"#!python\nprint('script')\n" + b"#\n" * 60, 0o755),
    "odd-1.0.data/scripts/plain.sh": (b"#!/bin/sh\n" + b"echo\n" * 60, 0o644),
    "odd-1.0.data/data/share/odd/table.csv": (b"1,2,3\n" * 77, 0o644),
    "odd-1.0.data/headers/odd.h": (b"#define ODD 1\n" * 20, 0o644),
    "odd-1.0.data/purelib/odd/pure.py": (b"PURE = True\n" * 20, 0o644),
}


def make_wheel(
    folder: Path, name: str, files: Mapping[str, tuple[bytes, int]], entry_points: str = ""
) -> Path:
    """Write NAME-1.0-py3-none-any.whl."""
    info = f"{name}-1.0.dist-info"
    everything = dict(files) | {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode() + b"\n" * 99,
            0o644,
        ),
        f"{info}/WHEEL": (b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n", 0o644),
    }
    if entry_points:
        everything[f"{info}/entry_points.txt"] = (entry_points.encode(), 0o644)
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, (data, _) in everything.items()
    ]
    everything[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode(), 0o644
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, (data, mode) in everything.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def make_deb(folder: Path, name: str, files: Mapping[str, bytes], control: Mapping[str, bytes]) -> Path:
    """Write a Debian package; its data are compressed by xz, its control files by gzip or xz."""
    members = {"debian-binary": b"2.0\n", "control.tar.xz": _tar(control), "data.tar.xz": _tar(files)}
    path = folder / f"{name}_1.0_amd64.deb"
    with path.open("wb") as out:
        out.write(b"!<arch>\n")
        for member, data in members.items():
            out.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
            out.write(data + b"\n" * (len(data) % 2))
    return path


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(out.getvalue())


def installed(folder: Path, wheels: Sequence[Path]) -> bytes:
    """Install wheels by pip; return the layer that `bench image build` would make of the files."""
    root = folder / "root"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-index"]
    command += ["--disable-pip-version-check", "--isolated", f"--root={root}", "--prefix=/usr/local"]
    subprocess.run([*command, *map(str, wheels)], check=True, env=os.environ | {"PIP_USER": "0"})
    return layer_of(root)


def layer_of(root: Path) -> bytes:
    """Return the normalised layer of a folder."""
    raw, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(root, ".")
    raw.seek(0)
    normalise(raw, out, EPOCH)
    return out.getvalue()


def package_file(path: Path, name: str | None = None) -> PackageFile:
    data = path.read_bytes()
    return PackageFile(name or path.name, hashlib.sha256(data).hexdigest(), len(data))
