"""Make layers and image configurations reproducible: remove traces of the machine, the time and the builder.

Works on streams and mappings; no other I/O.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from bench.base.strict_json import canonical_json

# Files that a build leaves in a layer and the image does not need: mount points, the build machine's network
# settings, caches, logs, and bytecode, which embeds a time.
_DROPPED = re.compile(
    r"(dev|proc|sys|run|tmp|root|build|var/(log|cache|tmp)|var/lib/apt/lists)/.+|build"
    r"|etc/(hosts|hostname|resolv\.conf|machine-id|mtab)|.*/__pycache__(/.*)?|.*\.pyc"
)


def normalise(source: BinaryIO, out: BinaryIO, epoch: int) -> str:
    """Copy a layer's tar without files and fields that differ between builds; return the copy's digest."""
    counted = Hashing(out)
    with (
        tarfile.open(fileobj=source, mode="r|*") as old,
        tarfile.open(fileobj=counted, mode="w|", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            member.name = member.name.removeprefix("./")
            if member.name in ("", ".") or _DROPPED.fullmatch(member.name):
                continue
            member.mtime, member.uname, member.gname, member.pax_headers = epoch, "", "", {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    return f"sha256:{counted.total.hexdigest()}"


class Hashing(io.RawIOBase):
    """A writable stream that hashes all bytes and passes them on."""

    def __init__(self, out: BinaryIO) -> None:
        self.total = hashlib.sha256()
        self._out = out

    def writable(self) -> bool:
        """Return True, for which writers of streams ask."""
        return True

    def write(self, data: Any) -> int:
        """Hash a piece and pass it on; return how many bytes the target took."""
        self.total.update(data)
        return self._out.write(data)


_KEPT = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir")  # settings of the Dockerfile that an image keeps


def configuration(
    built: Mapping[str, Any],
    diff_ids: Sequence[str],
    labels: Mapping[str, str],
    stages: Sequence[str],
    created: str,
) -> bytes:
    """Return the image configuration of these layers, with the Dockerfile's settings and these labels."""
    settings = built.get("config") or {}
    return canonical_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "config": {**{k: settings[k] for k in _KEPT if settings.get(k)}, "Labels": dict(labels)},
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
            "history": [{"created": created, "created_by": name} for name in stages],
        }
    )
