"""Bring an image, a Python, or bench's own code to a node: only the pieces that it lacks, each one verified.

PLACE/blobs/SHA256        a compressed layer, as send_blobs sends it
PLACE/code/SHA256/bench   bench's own code, for nodes that run without an image
PLACE/pythons/SHA256/     a Python for an environment, on nodes that have none that fits
PLACE/images/SHA256.sif   an image of Apptainer's
PLACE/.load-PUSH/         an image's archive, from which an engine loads it

Docker with its own store needs no blobs after loading, and since 1.10 it loads archives without the layers
that it has already. Podman, Apptainer, and Docker with containerd's store load whole archives only, so their
blobs stay as long as the image does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from bench.base.errors import EnvironmentCannot
from bench.base.names import ENGINES_WITH_STORE
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json
from bench.environment.interpreter import BUNDLED
from bench.images.archive import Blob, Identity
from bench.images.standalone_python import StandalonePython
from bench.push.answers import understood
from bench.push.connection import plain
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import (
    INSPECT,
    SURVEY_BYTES,
    Survey,
    images_question,
    read_images,
    read_stored,
)
from bench.push.remote import CommandResult, Node, demand
from bench.push.send_blobs import CHUNK, Progress, check_written, send_all
from bench.push.shared_place import TAG, ClaimedNode, one_at_a_time, remove_untagged

LOAD_SECONDS = 3600.0  # for loading or pulling an image
_NO_START = 77  # exit code of a script whose program does not start


@dataclass(frozen=True, slots=True)
class Shipped:
    """An image, or bench's code, that is on a node now."""

    runnable: str  # unambiguous name of the image on the node, or the folder of bench's code
    sent_bytes: int
    changed: bool
    identity: Identity | None = None  # None: no image, or the engine does not know its identity
    environment: str | None = None  # digest of the environment in which bench's code runs


def tag_of(image: Shippable) -> str:
    """Return a tag that only bench uses, so that its removal does not affect other users of the image."""
    return f"{TAG}:{image.config.removeprefix('sha256:')[:16]}"


def installed_as(survey: Survey, engine: str, image: Shippable) -> str | None:
    """Return the name of an image in the node's engine; None if the engine lacks the image."""
    state = survey.engines[engine]
    for stored in state.images:
        if stored.id == image.config or (
            not state.named_by_configuration and stored.diff_ids == image.facts.identity.diff_ids
        ):
            return stored.id
    return None


def layers_held(survey: Survey, engine: str, image: Shippable) -> int:
    """Return how many of the lowest layers the node's engine has, so that an archive need not hold them."""
    state = survey.engines[engine]
    if engine != "docker" or not state.named_by_configuration:
        return 0
    diff_ids = image.facts.identity.diff_ids
    return max((_common_length(diff_ids, stored.diff_ids) for stored in state.images), default=0)


def _common_length(ours: tuple[str, ...], theirs: tuple[str, ...]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))))


@dataclass(frozen=True, slots=True)
class Delivered:
    """An image that is on a node in pieces, and the command there that writes its archive."""

    archive: str  # shell command, run in the push's staging folder
    sent_bytes: int
    surplus: tuple[str, ...]  # files in the place that are not needed once the engine has its own copy


Deliver = Callable[[int], Delivered | None]  # takes how many of the lowest layers the engine has already


def ship(
    node: ClaimedNode,
    survey: Survey,
    engine: str,
    image: Shippable,
    store: ImageStore,
    progress: Progress,
    assemble: Deliver | None = None,
) -> Shipped:
    """Bring an image into the node's engine, and verify the digests that the engine reports.

    The layers that the engine lacks are delivered by `assemble`, or sent if it is or returns None.
    """
    if name := installed_as(survey, engine, image):
        return Shipped(name, 0, False, image.facts.identity)
    sif = f"{survey.place}/images/{image.config.removeprefix('sha256:')[:16]}.sif"
    if engine == "apptainer" and not node.ask(f"test -s {shlex.quote(sif)}").code:
        return Shipped(sif, 0, False, image.facts.identity)
    held = layers_held(survey, engine, image)
    delivered = (assemble and assemble(held)) or _deliver(node, image, held, store, progress)
    if engine == "apptainer":
        _load(node, _build_sif(sif, node.claim.push, delivered.archive))
        return Shipped(sif, delivered.sent_bytes, True, image.facts.identity)
    load = "docker load" if engine == "docker" else "podman load --quiet"
    _load(node, f"{delivered.archive} 2>&3 | {load}")
    named_by_configuration = survey.engines[engine].named_by_configuration
    runnable = _verify_loaded(node, engine, image, named_by_configuration=named_by_configuration)
    if engine == "docker" and named_by_configuration:  # the engine has copies
        node.ask(node.claim.discard(delivered.surplus))
    return Shipped(runnable, delivered.sent_bytes, True, image.facts.identity)


def _build_sif(sif: str, push: str, archive: str) -> str:
    """Return shell commands that build an image's file, or wait for another push that is building it.

    On a file system without locks both pushes build it, and the first file stays, because runs may have it
    open.
    """
    made, part = shlex.quote(sif), shlex.quote(f"{sif}.part-{push}")
    build = f"apptainer build --fix-perms {part} docker-archive:image.tar"
    build = (
        f"test -s {made} || {{ rm -f {part}; {archive} >image.tar && {build} && mv -n {part} {made}; "
        f"rm -f {part}; }}; test -s {made} && echo Loaded image"
    )
    folder = f'mkdir -p "$(dirname {made})"'
    return f"{folder} && {one_at_a_time(shlex.quote(f'{sif}.part'), build)}"


def with_stored_images(node: Node, survey: Survey, engine: str) -> Survey:
    """Return the survey with the images that an engine has now, after pending removals are done.

    Images that the survey found before the place was claimed may have been removed meanwhile.
    """
    if engine not in ENGINES_WITH_STORE or survey.engines[engine].facts is None:
        return survey
    question = f"{remove_untagged(engine)}{images_question(engine)}"
    answer = node.ask(question, seconds=LOAD_SECONDS, most_bytes=SURVEY_BYTES)
    with understood(f"{engine} does not answer as {engine} does"):
        images = () if answer.code else read_images(answer.text)
    engines = {**survey.engines, engine: replace(survey.engines[engine], images=images)}
    return replace(survey, engines=engines)


def _deliver(
    node: ClaimedNode, image: Shippable, held: int, store: ImageStore, progress: Progress
) -> Delivered:
    """Send all layers that the engine lacks."""
    layers = [store.layer(image, number) for number in range(held, len(image.facts.layers))]
    sent_bytes = send_all(node, node.claim.place, layers, progress)
    _link(node, image, held, layers)
    surplus = tuple(f"blobs/{blob.name}" for blob in layers)
    return Delivered("tar -cf - manifest.json blobs", sent_bytes, surplus)


def _link(node: ClaimedNode, image: Shippable, held: int, layers: list[Blob]) -> None:
    """Lay out the image's archive in the staging folder on the node, from the pieces that were sent."""
    config = image.config.removeprefix("sha256:")
    digests = [layer.diff_id for layer in image.facts.layers[:held]] + [blob.digest for blob in layers]
    names = [f"blobs/sha256/{digest.removeprefix('sha256:')}" for digest in digests]
    manifest = canonical_json(
        [{"Config": f"blobs/sha256/{config}", "RepoTags": [tag_of(image)], "Layers": names}]
    )
    staging = shlex.quote(node.claim.staging)
    links = " ".join(blob.name for blob in layers)
    script = (
        f"set -e; cd {shlex.quote(node.claim.place)}; rm -rf {staging}; mkdir -p {staging}/blobs/sha256; "
        f"cd {staging}; "
        f"head -c {len(manifest)} >manifest.json; cat >blobs/sha256/{config}; "
        f"for name in {links}; do ln ../blobs/$name blobs/sha256/$name; done"
    )
    check_written(node.ask(script, [manifest, image.facts.config_bytes]), node.claim.place)


def _load(node: ClaimedNode, load: str) -> None:
    """Let the engine load the image from the staging folder."""
    claim = node.claim
    script = f"cd {shlex.quote(f'{claim.place}/{claim.staging}')} && {{ {load}; }} 3>&2 2>&1 | tail -n 3; "
    script += f"cat trouble 2>/dev/null; cd ..; rm -rf {shlex.quote(claim.staging)}"
    answer = node.ask(script, seconds=LOAD_SECONDS)
    if "no space" in answer.text.lower():
        raise EnvironmentCannot(
            "its disk is full", where="the engine's store", advice="free some space and push again"
        )
    if "Loaded image" not in answer.text:
        lines = answer.text.strip().splitlines()
        reason = plain(lines[-1])[:300] if lines else answer.reason
        raise EnvironmentCannot(f"the engine cannot load the image: {reason}")


def _verify_loaded(node: Node, engine: str, image: Shippable, *, named_by_configuration: bool) -> str:
    """Compare the digests that the engine reports for the loaded image; return the image's name."""
    text = demand(node, f"{engine} {INSPECT} {tag_of(image)}", "inspecting the image")
    with understood(f"{engine} does not answer as {engine} does"):
        stored = read_stored(text.strip())
    identity = image.facts.identity
    is_named_so = stored.id == identity.config or not named_by_configuration
    if stored.diff_ids != identity.diff_ids or not is_named_so:
        raise EnvironmentCannot(f"the engine has {stored.id} as {tag_of(image)}, not {identity.config}")
    return stored.id


def ship_code(node: ClaimedNode, store: ImageStore, progress: Progress) -> Shipped:
    """Send bench's own code, a few hundred kilobytes; its dependencies are in the node's Python."""
    digest, data = store.code()
    folder = f"{node.claim.place}/code/{digest[:16]}"
    if not node.ask(f"test -d {shlex.quote(folder)}").code:
        return Shipped(folder, 0, changed=False)
    check_written(_unpack(node, "code", folder, data, progress), node.claim.place)
    return Shipped(folder, len(data), changed=True)


def ship_python(node: ClaimedNode, python: StandalonePython, progress: Progress) -> int:
    """Send a Python, unless the node has it; return the bytes sent. It must start there."""
    folder = python.folder(node.claim.place)
    if not node.ask(f"test -d {shlex.quote(folder)}").code:
        return 0
    data = python.path.read_bytes()
    imports = "import bz2, ctypes, lzma, sqlite3, ssl, zlib"
    starts = f"LD_LIBRARY_PATH=$t/new/{BUNDLED} $t/new/bin/python{python.version} -I -B -c '{imports}'"
    check = f"{{ {starts} || (exit {_NO_START}); }} && "
    answer = _unpack(node, "pythons", folder, data, progress, check)
    if answer.code == _NO_START:
        raise EnvironmentCannot(
            f"the Python that bench brings does not start there: {answer.reason}",
            advice=f"install Python {python.version} on the node, and name it: --python FILE",
        )
    check_written(answer, node.claim.place)
    return len(data)


def libraries_of(python: StandalonePython, place: str) -> str:
    """Return the folder of the shared libraries of a Python that was sent, for LD_LIBRARY_PATH."""
    return f"{python.folder(place)}/{BUNDLED}"


def _unpack(
    node: ClaimedNode, kind: str, folder: str, data: bytes, progress: Progress, check: str = ""
) -> CommandResult:
    """Send a .tar.gz and unpack it into a folder below PLACE/KIND, which gets its name when it is whole.

    `check` is a shell command, ended by &&, that runs before that; the files are in $t/new. If it fails, its
    exit code is in the result, which the caller has to look at.
    """
    place = node.claim.place
    progress(0, len(data))
    parent, quoted = shlex.quote(f"{place}/{kind}"), shlex.quote(folder)
    script = (
        f"umask 077; mkdir -p {parent} && cd {parent} && t=$(mktemp -d .new-XXXXXXXX) && "
        f'cat >$t/tar && echo "{sha256(data)}  $t/tar" | sha256sum -c --quiet && '
        f"mkdir $t/new && tar -xzf $t/tar -C $t/new && {check}"
        f"{{ mv -T $t/new {quoted} 2>/dev/null || test -d {quoted}; }}; "  # another push was quicker
        "code=$?; rm -rf $t; exit $code"
    )
    return node.ask(script, _chunks(data, progress))


def _chunks(data: bytes, progress: Progress) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
        progress(min(start + CHUNK, len(data)), len(data))
