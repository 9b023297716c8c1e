"""Write bundles: sign the payload files, store them in one tar, atomically; equal files make equal tars."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import replacing
from bench.base.operating_system import sync_folder
from bench.base.paths import using
from bench.bundle.handshake import BUNDLE_NAMESPACE
from bench.bundle.statement import Predicate, build_statement
from bench.bundle.tar_format import (
    BLOCK,
    CERTIFICATE,
    CHUNK,
    ENVELOPE,
    SIGNATURE,
    STATEMENT,
    ZEROS,
    Bundle,
    MemberRules,
    header,
    payload_fault,
    sha256_of,
)
from bench.signing.dsse import seal
from bench.signing.ssh_keys import Certificate, Signer
from bench.signing.sshsig import sign


class StoredMember(NamedTuple):
    """A member of another bundle, to be copied in chunks."""

    bundle: Bundle
    name: str


Source = bytes | Path | StoredMember


def pack(
    path: Path,
    files: Mapping[str, Source],
    predicate: Predicate,
    key: Signer,
    certificate: Certificate | None = None,
) -> None:
    """Write the signed bundle of these payload files."""
    if fault := payload_fault(files):
        raise BadInput(fault, where=str(path))
    digests = {name: sha256_of(_chunks(source)) for name, source in files.items()}
    statement = build_statement(digests, predicate)
    write_bundle(path, {**files, **signatures(statement, key, certificate)})


def signatures(statement: bytes, key: Signer, certificate: Certificate | None = None) -> dict[str, bytes]:
    """Make the statement's file, SSH signature and DSSE envelope, and the certificate's file if any."""
    certified = {CERTIFICATE: f"{certificate.line()}\n".encode()} if certificate else {}
    return certified | {
        STATEMENT: statement,
        SIGNATURE: sign(statement, key, BUNDLE_NAMESPACE, certificate),
        ENVELOPE: seal(statement, key),
    }


def write_bundle(path: Path, files: Mapping[str, Source]) -> None:
    """Write the tar of these files, completely or not at all."""
    with using(path, "the bundle cannot be written"):
        with replacing(path) as temporary, temporary.open("xb") as out:
            _write_members(out, files)
            out.flush()
            os.fsync(out.fileno())
        sync_folder(path.parent)


def _write_members(out: BinaryIO, files: Mapping[str, Source]) -> None:
    rules = MemberRules()
    for name, source in sorted(files.items()):
        size = _size(source)
        if fault := rules.fault(name, size):
            raise BadInput(f"no bundle can hold this: {fault}")
        out.write(header(name, size))
        if sum(out.write(chunk) for chunk in _chunks(source)) != size:
            raise EnvironmentCannot("changed while it was packed; pack again", where=str(source))
        out.write(bytes(-size % BLOCK))
    out.write(ZEROS * 2)


def _size(source: Source) -> int:
    if isinstance(source, StoredMember):
        return source.bundle.members[source.name].size
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _chunks(source: Source) -> Iterator[bytes]:
    if isinstance(source, StoredMember):
        yield from source.bundle.chunks(source.name)
        return
    if isinstance(source, bytes):
        yield source
        return
    with using(source, "cannot be read"), source.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
