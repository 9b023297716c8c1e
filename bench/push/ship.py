"""What a node lacks is sent, and nothing else; each piece is hashed there before it counts.

PLACE/blobs/SHA256        a layer, compressed; .part while it is on its way, and from there it goes on
PLACE/code/SHA256/bench   our own code, for nodes without an image

A Docker engine that keeps layers itself needs no blobs afterwards, and takes an archive that lacks the layers
it has (since 1.10). Podman, Apptainer, and Docker with containerd's store take whole archives only: their
blobs stay as long as the image does.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.strict_json import canonical_json
from bench.images.archive import Blob, Identity
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import Survey, read_stored
from bench.push.remote import ANSWER_SECONDS, CommandResult, Node, demand, plain

_CHUNK = 2**17
_LOAD_SECONDS = 3600.0
_ATTEMPTS = 3
Sent = Callable[[int, int], object]  # bytes so far, of how many


@dataclass(frozen=True, slots=True)
class Shipped:
    """What is on the node now, and how to run it."""

    runnable: str  # the name by which exactly this image is run there
    sent_bytes: int
    changed: bool
    identity: Identity | None = None  # None: no image, or one whose engine does not tell


def tag_of(image: Shippable) -> str:
    """Ours alone: taking it away takes nothing from anybody who had the image before."""
    return f"bench-push:{image.config.removeprefix('sha256:')[:16]}"


# --- the difference -------------------------------------------------------------------------------------


def present(found: Survey, engine: str, image: Shippable) -> str | None:
    """How the node's engine calls this very image, if it has it."""
    state = found.engines[engine]
    for stored in state.images:
        if stored.id == image.config or (
            not state.named_by_configuration and stored.diff_ids == image.facts.identity.diff_ids
        ):
            return stored.id
    return None


def layers_held(found: Survey, engine: str, image: Shippable) -> int:
    """How many of the image's layers, from the lowest up, the engine has and will not ask for again."""
    state = found.engines[engine]
    if engine != "docker" or not state.named_by_configuration:
        return 0
    wanted = image.facts.identity.diff_ids
    return max((_common(wanted, stored.diff_ids) for stored in state.images), default=0)


def _common(ours: tuple[str, ...], theirs: tuple[str, ...]) -> int:
    number = 0
    while number < min(len(ours), len(theirs)) and ours[number] == theirs[number]:
        number += 1
    return number


# --- sending --------------------------------------------------------------------------------------------


def ship(node: Node, found: Survey, engine: str, image: Shippable, depot: ImageStore, sent: Sent) -> Shipped:
    """The image is in the node's engine afterwards, found there by its digests."""
    if there := present(found, engine, image):
        return Shipped(there, 0, False, image.facts.identity)
    place = found.place
    sif = f"{place}/images/{image.config.removeprefix('sha256:')[:16]}.sif"
    if engine == "apptainer" and not node.ask(f"test -s {shlex.quote(sif)}").code:
        return Shipped(sif, 0, False, image.facts.identity)
    demand(node, f"umask 077; mkdir -p {shlex.quote(place)}/blobs", f"making {place}")
    held = layers_held(found, engine, image)
    layers = [depot.layer(image, number) for number in range(held, len(image.facts.layers))]
    total = _send_all(node, place, layers, sent)
    load = "docker load" if engine == "docker" else "podman load --quiet"
    if engine == "apptainer":
        part = shlex.quote(f"{sif}.part")  # a build that is cut off leaves what looks like an image
        load = f"mkdir -p {shlex.quote(place)}/images && cat >image.tar && rm -f {part} && "
        load += f"apptainer build --fix-perms {part} docker-archive:image.tar && "
        load += f"mv {part} {shlex.quote(sif)} && echo Loaded image"
    _load(node, place, image, held, layers, load)
    if engine == "apptainer":
        return Shipped(sif, total, True, image.facts.identity)
    runnable = _inspected(
        node, engine, image, named_by_configuration=found.engines[engine].named_by_configuration
    )
    if engine == "docker" and found.engines[engine].named_by_configuration:
        names = " ".join(blob.digest.removeprefix("sha256:") for blob in layers)
        node.ask(f"cd {shlex.quote(place)}/blobs && rm -f {names}; rmdir ../blobs")  # the engine has them now
    return Shipped(runnable, total, True, image.facts.identity)


def _send_all(node: Node, place: str, layers: list[Blob], sent: Sent) -> int:
    """Bytes that were sent. What is there already, whole or in part, is not sent again."""
    sizes = [blob.path.stat().st_size for blob in layers]
    total, before, moved = sum(sizes), 0, 0
    sent(0, total)
    for blob, size in zip(layers, sizes, strict=True):
        done = before
        moved += _send(node, place, blob, size, lambda count, done=done: sent(done + count, total))  # type: ignore[misc]
        before += size
        sent(before, total)
    return moved


def _send(node: Node, place: str, blob: Blob, size: int, sent: Callable[[int], object]) -> int:
    name = blob.digest.removeprefix("sha256:")
    moved = 0
    for _ in range(_ATTEMPTS):
        have = _size_there(node, place, name)
        if have is None:
            return moved
        have = have if have <= size else 0
        pieces = _Pieces(blob.path, have, sent)
        how = ">>" if have else ">"
        answer = node.ask(f"cd {shlex.quote(place)}/blobs && cat {how}{name}.part", pieces)
        moved += pieces.count
        _check_room(answer, place)
        check = f"cd {shlex.quote(place)}/blobs && sha256sum {name}.part"
        digest = demand(node, check, "hashing what arrived", ANSWER_SECONDS + size / 10e6)
        if digest.split()[0] == name:
            demand(node, f"cd {shlex.quote(place)}/blobs && mv {name}.part {name}", "keeping what arrived")
            return moved
        node.ask(f"rm -f {shlex.quote(place)}/blobs/{name}.part")
    if not _is_sound(blob.path, name):  # after a crash of this machine's; it will be compressed again
        blob.path.unlink(missing_ok=True)
        raise EnvironmentCannot(
            "was kept damaged here, and is away", where=str(blob.path), advice="push again"
        )
    raise EnvironmentCannot(
        f"a layer arrived damaged {_ATTEMPTS} times", advice="its disk or its memory is not sound"
    )


def _is_sound(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:  # another node's push has found out before
        return False


def _size_there(node: Node, place: str, name: str) -> int | None:
    """Bytes of it that have arrived; None: all of it, and checked."""
    there = demand(
        node,
        f"cd {shlex.quote(place)}/blobs && if [ -f {name} ]; then echo whole; "
        f"elif [ -f {name}.part ]; then wc -c <{name}.part; else echo 0; fi",
        "looking for what has arrived",
    ).strip()
    return None if there == "whole" else int(there)


class _Pieces:
    """A file from somewhere on, counted as it is taken."""

    def __init__(self, path: Path, start: int, sent: Callable[[int], object]) -> None:
        self._path, self._start, self._sent = path, start, sent
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._start)
            while chunk := file.read(_CHUNK):
                yield chunk
                self.count += len(chunk)
                self._sent(self._start + self.count)


def _check_room(answer: CommandResult, place: str) -> None:
    if not answer.code:
        return
    if "no space" in answer.reason.lower() or "quota" in answer.reason.lower():
        raise EnvironmentCannot(
            "its disk is full",
            where=place,
            advice="make room there and push again: what has arrived is not sent twice",
        )
    raise EnvironmentCannot(f"it takes nothing more: {answer.reason}", where=place)


# --- loading --------------------------------------------------------------------------------------------


def _load(node: Node, place: str, image: Shippable, held: int, layers: list[Blob], load: str) -> None:
    """As one archive, put together there from the pieces, and read by the engine as it comes."""
    config = image.config.removeprefix("sha256:")
    digests = [layer.diff_id for layer in image.facts.layers[:held]] + [blob.digest for blob in layers]
    names = [f"blobs/sha256/{digest.removeprefix('sha256:')}" for digest in digests]
    manifest = canonical_json(
        [{"Config": f"blobs/sha256/{config}", "RepoTags": [tag_of(image)], "Layers": names}]
    )
    links = " ".join(blob.digest.removeprefix("sha256:") for blob in layers)
    work = f"{place}/.load"
    script = (
        f"set -e; cd {shlex.quote(place)}; rm -rf .load; mkdir -p .load/blobs/sha256; cd .load; "
        f"head -c {len(manifest)} >manifest.json; cat >blobs/sha256/{config}; "
        f"for name in {links}; do ln ../blobs/$name blobs/sha256/$name; done"
    )
    _check_room(node.ask(script, [manifest, image.facts.config_bytes]), place)
    script = f"cd {shlex.quote(work)} && tar -cf - manifest.json blobs | ( {load} ) 2>&1 | tail -n 3; "
    script += "cd ..; rm -rf .load"
    answer = node.ask(script, seconds=_LOAD_SECONDS)
    if "no space" in answer.text.lower():
        raise EnvironmentCannot(
            "its disk is full", where="the engine's store", advice="make room and push again"
        )
    said = answer.text.strip().splitlines()
    if "Loaded image" not in answer.text:
        raise EnvironmentCannot(
            f"the engine does not take the image: {plain(said[-1])[:300] if said else answer.reason}"
        )


def _inspected(node: Node, engine: str, image: Shippable, *, named_by_configuration: bool) -> str:
    """The engine's own word on what it holds now: the same digests, or it is another image."""
    script = f"{engine} image inspect --format '{{{{.Id}}}} {{{{json .RootFS.Layers}}}}' {tag_of(image)}"
    text = demand(node, script, "looking at the image there")
    name, _, layers = text.strip().partition(" ")
    name = f"sha256:{name.removeprefix('sha256:')}"
    wanted = image.facts.identity
    same = all(diff_id in layers for diff_id in wanted.diff_ids) and layers.count("sha256:") == len(
        wanted.diff_ids
    )
    if not same or (named_by_configuration and name != wanted.config):
        raise EnvironmentCannot(f"the engine holds {name} under our name, not {wanted.config}")
    return name


def pull(node: Node, found: Survey, engine: str, reference: str, wanted: str | None) -> Shipped:
    """From a registry, by the node itself; the manifest's identity is demanded of it all the same."""
    name = shlex.quote(reference)
    before = node.ask(f"{engine} image inspect --format '{{{{.Id}}}}' {name} 2>/dev/null").text.strip()
    demand(node, f"{engine} pull --quiet {name}", f"pulling {reference}", _LOAD_SECONDS)
    form = "'{{.Id}} {{json .RootFS.Layers}}'"
    told = demand(node, f"{engine} image inspect --format {form} {name}", "looking at the image").strip()
    stored = read_stored(told)
    state = found.engines[engine]
    identity = Identity(stored.id, stored.diff_ids) if state.named_by_configuration else None
    changed = stored.id not in {image.id for image in state.images}
    right = wanted is None or (identity is not None and identity.config == wanted)
    script = ":"
    if changed and right:  # under our own tag alone, so that it goes when we do
        script = f"{engine} tag {stored.id} bench-push:{stored.id.removeprefix('sha256:')[:16]}"
    if not before:
        script += f" && {engine} image rm {name} >/dev/null"
    elif before.removeprefix("sha256:") != stored.id.removeprefix("sha256:"):  # the node's own name
        script += f" && {engine} tag {before} {name}"
    demand(node, script, "keeping what was pulled")
    if not right:
        raise EnvironmentCannot(
            f"{reference} is {stored.id}, the manifest asks for {wanted}",
            advice="name it by its digest there, or take the manifest of this image",
        )
    return Shipped(stored.id, 0, changed, identity)


def ship_code(node: Node, place: str, depot: ImageStore, sent: Sent) -> Shipped:
    """Our own code, a few hundred kilobytes; the node's Python brings the rest."""
    digest, data = depot.code()
    folder = f"{place}/code/{digest[:16]}"
    quoted = shlex.quote(folder)
    if not node.ask(f"test -d {quoted}").code:
        return Shipped(folder, 0, changed=False)
    sent(0, len(data))
    script = (
        f"umask 077; mkdir -p {shlex.quote(place)}/code && cd {shlex.quote(place)}/code && "
        f"p={digest[:16]}.part n={digest[:16]}.new && cat >$p && "
        f'echo "{digest}  $p" | sha256sum -c --quiet && rm -rf $n && mkdir $n && '
        f"tar -xzf $p -C $n && rm $p && mv $n {quoted}"
    )
    _check_room(node.ask(script, [data]), place)
    sent(len(data), len(data))
    return Shipped(folder, len(data), changed=True)
