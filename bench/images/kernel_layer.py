"""Kernel layers: compiled wheels as a layer of their own, on top of an image that is whole without them.

A layer is an uncompressed tar, made from the wheels alone, so that the same wheels always give the same
bytes; its digest is the sha256 of the file. The configuration of an image with a layer follows from the
image's own configuration and from the layer, and the other way round.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import open_regular, replacing
from bench.base.kernel_list import (
    KERNEL_LIST,
    CompiledWheel,
    KernelList,
    label_of,
    read_kernels,
    sbom_with,
)
from bench.base.names import IMAGE_SBOM
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, pretty_json, strict_loads, to_json
from bench.environment.interpreter import Interpreter
from bench.environment.unpack import destination
from bench.environment.wheel_tags import misfit, read_name
from bench.images.archive import (
    Blob,
    Identity,
    ImageFacts,
    blob_of,
    extract,
    open_layer,
    read_configuration,
    write_archive,
)
from bench.images.gpu_code import by_capability, gpu_code
from bench.images.locks import Pin
from bench.images.normalise import Hashing
from bench.images.sbom import python_versions
from bench.images.variants import Variant, images

LABEL = "bench.kernels"
STAGE = "kernels"  # of the layer, in the history of an image
WITHOUT = "bench.without"  # label: kernels of the lock that the image lacks
_GLIBC = (2, 36)  # of Debian 12
_MOST_LIST_BYTES = 2**20
_FILE, _EXECUTABLE, _FOLDER = 0o644, 0o755, 0o755  # modes


@dataclass(frozen=True, slots=True)
class KernelLayer:
    """A kernel layer as a file."""

    path: Path
    digest: str  # sha256 of the tar, as sha256:...
    kernels: KernelList
    names: frozenset[str]  # of its files
    folders: frozenset[str]

    def changes(self, name: str, *, is_folder: bool) -> bool:
        """Whether the layer would put something else in the place of a file or a folder."""
        return name in self.names or (not is_folder and name in self.folders)


def site_of(python: str) -> str:
    """Return the folder of an image's packages for a Python."""
    return f"usr/local/lib/python{python}/dist-packages"


def pack_kernels(
    wheels: Mapping[str, Path], variant: Variant, pins: Mapping[str, Pin], out: Path
) -> KernelLayer:
    """Write the layer of compiled wheels, by name; `pins` are those of the variant's lock.

    Refuses wheels that are not among the variant's kernels, or not for its Python.
    """
    python, torch = images().python, pins["torch"].version.partition("+")[0]
    for name, path in wheels.items():
        _require_kernel(name, path, variant, pins, python)
    with tempfile.TemporaryDirectory(prefix="kernels-", dir=out.parent) as work:
        files: dict[str, _File] = {}
        listed = []
        for name, path in sorted(wheels.items()):
            own = dict(_unpacked(path, Path(work) / name, site_of(python)))
            if twice := sorted(own.keys() & files.keys()):
                raise BadInput(f"has {twice[0]}, which another of these wheels has too", where=path.name)
            code = sorted({code for file in own.values() for code in gpu_code(file.path)}, key=by_capability)
            version = pins[name].version
            listed.append(CompiledWheel(name, version, path.name, file_sha256(path), tuple(code)))
            files |= own
        kernels = KernelList(variant.name, python, torch, tuple(listed), "bench/kernels/v1")
        with replacing(out) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            _write(archive, files, pretty_json(to_json(kernels)))
    return read_layer(out)


def _require_kernel(name: str, path: Path, variant: Variant, pins: Mapping[str, Pin], python: str) -> None:
    """Refuse a wheel that is not one of the variant's kernels, of another version or for another Python."""
    if name not in variant.kernels:
        kernels = ", ".join(variant.kernels) or "none"
        raise BadInput(f"is not a compiled kernel of {variant.name}: {kernels}", where=path.name)
    named = read_name(path.name)
    if named is None or named.version != pins[name].version:
        raise BadInput(f"{variant.lock} has {name} {pins[name].version}", where=path.name)
    major, minor = python.split(".")
    image = Interpreter(Path(), (int(major), int(minor)), python, "", _GLIBC)
    if why := misfit(path.name, image):
        raise BadInput(
            f"does not fit the image: {why}", where=path.name, advice=f"compile it for Python {python}"
        )


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a layer: its content on this machine, and its mode."""

    path: Path
    executable: bool


def _unpacked(wheel: Path, folder: Path, site: str) -> Iterator[tuple[str, _File]]:
    """Unpack a wheel into numbered files; yield the path of each in an image. Scripts are left out."""
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            for number, info in enumerate(members):
                name = destination(info.filename, site)
                if name is None or not name.startswith(f"{site}/"):
                    continue
                target = folder / str(number)
                with archive.open(info) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
                yield name, _File(target, bool(info.external_attr >> 16 & 0o111))
    except zipfile.BadZipFile as error:
        raise BadInput(f"is not a wheel: {error}", where=str(wheel)) from None
    except EnvironmentCannot as error:
        raise BadInput(error.message, where=str(wheel)) from None


def _write(archive: tarfile.TarFile, files: Mapping[str, _File], listed: bytes) -> None:
    """Write folders and files in the order of their names, without times and owners.

    Folders that the image already has are written too: an engine creates missing ones by rules of its own.
    """
    names = {*files, KERNEL_LIST}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
    for name in sorted(names | folders):
        entry = tarfile.TarInfo(name)
        if name in folders:
            entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER
            archive.addfile(entry)
        elif name == KERNEL_LIST:
            entry.mode, entry.size = _FILE, len(listed)
            archive.addfile(entry, io.BytesIO(listed))
        else:
            file = files[name]
            entry.mode, entry.size = _EXECUTABLE if file.executable else _FILE, file.path.stat().st_size
            with file.path.open("rb") as data:
                archive.addfile(entry, data)


def is_layer(path: Path) -> bool:
    """Whether a file is a kernel layer, by its contents; False for a file that does not exist."""
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            names = set(archive.getnames())
    except (tarfile.TarError, OSError, BadInput):
        return False
    return KERNEL_LIST in names and "manifest.json" not in names


def read_layer(path: Path) -> KernelLayer:
    """Read a kernel layer; BadInput for another file, or a member that no layer may have.

    A layer has files and folders of root below the image's folder of packages, and its list: no links, and no
    marks by which a layer deletes files of those below it. Its bytes are those that bench writes for these
    files, so that no other reader of the tar finds anything else in it.
    """
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            members = archive.getmembers()
            listed = [member for member in members if member.name == KERNEL_LIST and member.isreg()]
            if len(listed) != 1 or listed[0].size > _MOST_LIST_BYTES:
                raise BadInput("is not a kernel layer: it has no list of kernels", where=str(path))
            kernels = read_kernels((archive.extractfile(listed[0]) or io.BytesIO()).read())
    except (tarfile.TarError, OSError, ValueError) as error:
        raise BadInput(
            f"is not a kernel layer: {error}", where=str(path), advice="bench image kernels"
        ) from None
    site = site_of(kernels.python)
    names = [member.name for member in members]
    above = {str(parent) for name in (site, KERNEL_LIST) for parent in PurePosixPath(name).parents} | {site}
    for member in members:
        if not _belongs(member, site, above):
            raise BadInput(f"has {member.name!r:.100}, which no kernel layer has", where=str(path))
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
    if lacking := sorted(parents - set(names)):
        raise BadInput(f"lacks the folder {lacking[0]}", where=str(path))
    found = f"sha256:{file_sha256(path)}"
    if names != sorted(set(names)) or _rewritten(path) != found:
        advice = "make it again from its wheels: bench image kernels"
        raise BadInput("has other bytes than bench writes for its files", where=str(path), advice=advice)
    files = frozenset(member.name for member in members if member.isreg())
    return KernelLayer(path, found, kernels, files, frozenset(names) - files)


def _rewritten(path: Path) -> str:
    """Return the digest of a layer as bench would write it."""
    with Path(os.devnull).open("wb") as nowhere, tarfile.open(path, "r:") as old:
        counted = Hashing(nowhere)
        with tarfile.open(fileobj=counted, mode="w|", format=tarfile.PAX_FORMAT) as new:
            for member in old:
                entry = tarfile.TarInfo(member.name)
                entry.type, entry.mode, entry.size = member.type, member.mode, member.size
                new.addfile(entry, old.extractfile(member))  # None for a folder
    return f"sha256:{counted.total.hexdigest()}"


def _belongs(member: tarfile.TarInfo, site: str, above: set[str]) -> bool:
    place = PurePosixPath(member.name)
    if str(place) != member.name or ".." in place.parts or member.uid or member.gid:
        return False
    if any(part.startswith(".wh.") for part in place.parts):
        return False
    if member.isdir():
        return member.mode == _FOLDER and (member.name in above or member.name.startswith(f"{site}/"))
    inside = member.name == KERNEL_LIST or member.name.startswith(f"{site}/")
    return member.type == tarfile.REGTYPE and member.mode in (_FILE, _EXECUTABLE) and inside


def kernels_in(path: Path, facts: ImageFacts) -> KernelList | None:
    """Return the list of an image's kernel layer; None for an image without one."""
    if below_kernels(facts) is None:
        return None
    try:
        return read_kernels(extract(path, facts, KERNEL_LIST))
    except ValueError as error:
        raise BadInput(f"has a list of kernels that cannot be read: {error}", where=str(path)) from None


def sbom_of(path: Path, facts: ImageFacts) -> bytes:
    """Return the SBOM of an image, with the wheels of its kernel layer if it has one."""
    sbom, kernels = extract(path, facts, IMAGE_SBOM), kernels_in(path, facts)
    return sbom_with(sbom, kernels) if kernels else sbom


def with_kernels(config: bytes, layer_digest: str, kernels: KernelList) -> bytes:
    """Return the configuration of an image with a kernel layer on top."""
    document: dict[str, Any] = strict_loads(config)
    labels = dict(document["config"]["Labels"])
    labels[LABEL] = label_of(kernels)
    here = {wheel.name for wheel in kernels.wheels}
    without = " ".join(name for name in labels.pop(WITHOUT, "").split() if name not in here)
    labels |= {WITHOUT: without} if without else {}
    layers = [*document["rootfs"]["diff_ids"], layer_digest]
    history = [*document["history"], {**document["history"][-1], "created_by": STAGE}]
    document["config"] = {**document["config"], "Labels": labels}
    return canonical_json({**document, "rootfs": {"type": "layers", "diff_ids": layers}, "history": history})


def below_kernels(facts: ImageFacts) -> ImageFacts | None:
    """Return the image below a kernel layer; None for an image without one."""
    labels, stages = dict(facts.labels), facts.config.stages
    try:
        kernels = from_json(dict[str, tuple[str, ...]], strict_loads(labels.pop(LABEL, "").encode()))
    except DecodeError:
        return None
    if stages[-1:] != (STAGE,) or len(stages) != len(facts.layers):
        return None
    document: dict[str, Any] = strict_loads(facts.config_bytes)
    labels[WITHOUT] = " ".join(sorted({*labels.get(WITHOUT, "").split(), *kernels}))
    document["config"] = {**document["config"], "Labels": labels}
    document["rootfs"] = {"type": "layers", "diff_ids": document["rootfs"]["diff_ids"][:-1]}
    config = canonical_json({**document, "history": document["history"][:-1]})
    identity = Identity(f"sha256:{sha256(config)}", facts.identity.diff_ids[:-1])
    return ImageFacts(identity, read_configuration(config), config, facts.layers[:-1], facts.tags)


def add_kernels(image: Path, facts: ImageFacts, layer: KernelLayer, out: Path, tag: str) -> None:
    """Write the archive of an image with a kernel layer; BadInput if they do not fit together."""
    kernels = layer.kernels
    as_written = canonical_json(strict_loads(facts.config_bytes)) == facts.config_bytes
    if not as_written or len(facts.config.stages) != len(facts.layers):
        raise BadInput("is not as bench image build and save write it", where=str(image))
    if LABEL in facts.labels:
        advice = "start from the image without kernels, and one layer with all of them"
        raise BadInput("has a kernel layer already", where=str(image), advice=advice)
    if (variant := facts.labels.get("bench.variant")) != kernels.variant:
        raise BadInput(f"is for the variant {kernels.variant}, the image is {variant}", where=str(layer.path))
    if kernels.python != images().python:
        message = f"is for Python {kernels.python}, images have {images().python}"
        raise BadInput(message, where=str(layer.path))
    lacking = facts.labels.get(WITHOUT, "").split()
    if present := [wheel.name for wheel in kernels.wheels if wheel.name not in lacking]:
        raise BadInput(f"has {present[0]} already", where=str(image))
    torch = python_versions(strict_loads(extract(image, facts, IMAGE_SBOM))).get("torch")
    if torch is None or torch.partition("+")[0] != kernels.torch:
        raise BadInput(
            f"was compiled for torch {kernels.torch}, the image has {torch or 'none'}", where=str(layer.path)
        )
    if shared := sorted(
        name for name, is_folder in _entries(image, facts) if layer.changes(name, is_folder=is_folder)
    ):
        raise BadInput(f"has {shared[0]}, which the image has too", where=str(layer.path))
    config = with_kernels(facts.config_bytes, layer.digest, kernels)
    own = Blob(layer.path, layer.digest, layer.digest, compressed=False)
    write_archive(out, config, [*(blob_of(image, below) for below in facts.layers), own], tag)


def _entries(image: Path, facts: ImageFacts) -> Iterator[tuple[str, bool]]:
    """Yield the names of all that an image has, and whether each is a folder."""
    for layer in facts.layers:
        with open_layer(image, layer) as blob, tarfile.open(fileobj=blob, mode="r|") as files:
            yield from ((member.name.removeprefix("./"), member.isdir()) for member in files)
