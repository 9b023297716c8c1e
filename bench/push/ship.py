"""Bring an image, or bench's own code, to a node: send only the pieces that it lacks, and verify each one.

PLACE/blobs/SHA256        a compressed layer; SHA256.part while incomplete, and the next attempt continues it
PLACE/code/SHA256/bench   bench's own code, for nodes that run without an image
PLACE/pythons/SHA256/     a Python for an environment, on nodes that have none that fits
PLACE/images/SHA256.sif   an image of Apptainer's
PLACE/.load-PUSH/         an image's archive, from which an engine loads it

Docker with its own store needs no blobs after loading, and since 1.10 it loads archives without the layers
that it has already. Podman, Apptainer, and Docker with containerd's store load whole archives only, so their
blobs stay as long as the image does.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.names import ENGINES_WITH_STORE
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import canonical_json
from bench.environment.interpreter import BUNDLED
from bench.images.archive import Blob, Identity
from bench.images.standalone_python import StandalonePython
from bench.push.answers import number, understood
from bench.push.connection import plain
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import (
    INSPECT,
    SURVEY_BYTES,
    InstalledEngine,
    StoredImage,
    Survey,
    images_question,
    read_images,
    read_stored,
)
from bench.push.remote import ANSWER_SECONDS, CommandResult, Node, demand
from bench.push.shared_place import TAG, ClaimedNode, one_at_a_time, remove_untagged

_CHUNK = 2**17  # bytes
_LOAD_SECONDS = 3600.0  # for loading or pulling an image
_ATTEMPTS = 3  # to send a layer, if it arrives with a wrong hash
_STALE_LOOKS = 20  # looks at a part that does not grow, after which its writer is taken for gone
_REFUSED = 76  # exit code of a script whose engine does not get an image
_NO_START = 77  # exit code of a script whose program does not start
_BUSY, _BUSY_SECONDS = 75, 1.0  # exit code while another push writes the same layer; pause before a new look
Progress = Callable[[int, int], object]  # called with the bytes sent so far, and the total


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


# --- the difference -------------------------------------------------------------------------------------


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


# --- sending --------------------------------------------------------------------------------------------


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
    answer = node.ask(question, seconds=_LOAD_SECONDS, most_bytes=SURVEY_BYTES)
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
    surplus = tuple(f"blobs/{blob.digest.removeprefix('sha256:')}" for blob in layers)
    return Delivered("tar -cf - manifest.json blobs", sent_bytes, surplus)


def send_all(node: Node, place: str, layers: list[Blob], progress: Progress) -> int:
    """Send layers or wheels, without the bytes that the node has already; return the number of bytes sent."""
    sizes = [blob.path.stat().st_size for blob in layers]
    total, before, sent = sum(sizes), 0, 0
    demand(node, f"umask 077; mkdir -p {shlex.quote(place)}/blobs", f"making {place}")
    progress(0, total)
    for blob, size in zip(layers, sizes, strict=True):
        sent += _send(node, place, blob, size, partial(_advance, progress, before, total))
        before += size
        progress(before, total)
    return sent


def _advance(progress: Progress, before: int, total: int, count: int) -> None:
    progress(before + count, total)


def _send(node: Node, place: str, blob: Blob, size: int, advance: Callable[[int], object]) -> int:
    """Send one layer and verify its hash on the node, in up to three attempts; return the bytes sent."""
    name = blob.digest.removeprefix("sha256:")
    sent = attempts = looks = 0
    before = -1  # bytes at the last look while another push wrote them
    while attempts < _ATTEMPTS:
        arrived = _arrived_bytes(node, place, name)
        if arrived is None:
            return sent
        start = arrived if arrived <= size else 0
        if not _write(node, place, name, arrived, pieces_of(blob.path, start, advance), start):
            advance(start)  # which ends the wait if the user asks to stop
            looks = looks + 1 if arrived == before else 0
            before = arrived
            if looks >= _STALE_LOOKS:
                _take_over(node, place, name)
            time.sleep(_BUSY_SECONDS)
            continue
        attempts += 1
        sent += size - start
        if _accepted(node, place, name, size):
            return sent
    if not _has_hash(blob.path, name):  # a crash left a damaged file; the next push compresses it again
        blob.path.unlink(missing_ok=True)
        message = "was damaged in the cache of this machine, and is deleted now"
        advice = "push again"
        raise EnvironmentCannot(message, where=str(blob.path), advice=advice)
    raise EnvironmentCannot(
        f"a layer arrived damaged {_ATTEMPTS} times", advice="the node's disk or memory may be faulty"
    )


def _write(node: Node, place: str, name: str, arrived: int, pieces: Iterator[bytes], start: int) -> bool:
    """Write a layer from byte `start` on; return False if another push is writing it.

    The part is locked, so that two pushes never write it at once; bytes that the other push has sent count.
    """
    part = f"{name}.part"
    here = f"cd {shlex.quote(place)}/blobs && exec 9>>{part}"
    if node.ask(f"{here} && flock -n 9").code == 1:
        return False
    busy = f"{{ cat >/dev/null; exit {_BUSY}; }}"  # reads all, since an early end would break the connection
    empty = "" if start == arrived else f": >{part}; "
    script = f'{here}; flock -n 9 || {busy}; [ "$(wc -c <{part})" -eq {arrived} ] || {busy}; {empty}cat >&9'
    answer = node.ask(script, pieces)
    if answer.code == _BUSY:
        return False
    check_written(answer, place)
    return True


def _accepted(node: Node, place: str, name: str, size: int) -> bool:
    """Hash the received file and give it its name; delete it and return False if the hash is wrong.

    If another push sent the last bytes at the same time, it may have named the file already.
    """
    part = f"{name}.part"
    script = (
        f"cd {shlex.quote(place)}/blobs && case $([ -f {name} ] || sha256sum <{part}) in "
        f"{name}*) mv {part} {name} || [ -f {name} ];; ?*) rm -f {part}; false;; *) [ -f {name} ];; esac"
    )
    answer = node.ask(f"{{ {script}; }} 2>/dev/null && echo whole", seconds=ANSWER_SECONDS + size / 10e6)
    return answer.text.strip() == "whole"


def _take_over(node: Node, place: str, name: str) -> None:
    """Replace a part by a copy, because its writer lost the connection and still holds the lock."""
    part = f"{name}.part"
    copy = f"cd {shlex.quote(place)}/blobs && cp {part} {part}.copy && mv {part}.copy {part}"
    demand(node, copy, "copying what has arrived of a layer")


def _has_hash(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(path) == sha256
    except FileNotFoundError:  # the push to another node has deleted it already
        return False


def _arrived_bytes(node: Node, place: str, name: str) -> int | None:
    """Return the number of bytes of a layer that the node has; None if it has the whole, verified layer."""
    answer = demand(
        node,
        f"cd {shlex.quote(place)}/blobs && if [ -f {name} ]; then echo whole; "
        f"elif [ -f {name}.part ]; then wc -c <{name}.part; else echo 0; fi",
        "looking for layers",
    ).strip()
    with understood("the node's answer about its layers is none that bench's script prints"):
        return None if answer == "whole" else number(answer)


def pieces_of(path: Path, start: int = 0, advance: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """Yield the chunks of a file from `start` on; after each one, call `advance` with the file's position."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            yield chunk
            if advance is not None:
                advance(file.tell())


def check_written(answer: CommandResult, place: str) -> None:
    """Raise an error for a failed write; a full disk gets advice of its own."""
    if not answer.code:
        return
    if "no space" in answer.reason.lower() or "quota" in answer.reason.lower():
        advice = "free some space on the node and push again: data that arrived is not sent again"
        raise EnvironmentCannot("its disk is full", where=place, advice=advice)
    raise EnvironmentCannot(f"writing failed: {answer.reason}", where=place)


# --- loading --------------------------------------------------------------------------------------------


def _link(node: ClaimedNode, image: Shippable, held: int, layers: list[Blob]) -> None:
    """Lay out the image's archive in the staging folder on the node, from the pieces that were sent."""
    config = image.config.removeprefix("sha256:")
    digests = [layer.diff_id for layer in image.facts.layers[:held]] + [blob.digest for blob in layers]
    names = [f"blobs/sha256/{digest.removeprefix('sha256:')}" for digest in digests]
    manifest = canonical_json(
        [{"Config": f"blobs/sha256/{config}", "RepoTags": [tag_of(image)], "Layers": names}]
    )
    staging = shlex.quote(node.claim.staging)
    links = " ".join(blob.digest.removeprefix("sha256:") for blob in layers)
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
    answer = node.ask(script, seconds=_LOAD_SECONDS)
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


def pull(node: ClaimedNode, survey: Survey, engine: str, reference: str, required: str | None) -> Shipped:
    """Let the node pull an image from a registry; refuse it if its identity is not the `required` one.

    The image gets a tag that only bench uses; `reference` is reset to the image that it named before, if any.
    """
    state = survey.engines[engine]
    script = _pull_alone(engine, reference, _is_kept(state, required))
    # Another push to this node must not find or take away the name meanwhile. Other nodes have other engines.
    lock = f'{shlex.quote(f"{node.claim.place}/.pull-")}"$(uname -n)"'
    answer = node.ask(one_at_a_time(lock, script), seconds=_LOAD_SECONDS)
    if answer.code == _REFUSED:
        raise refused_pull(engine, reference, answer.reason)
    if answer.code:
        raise EnvironmentCannot(f"tagging the image failed: {answer.reason}")
    with understood(f"{engine} does not answer as {engine} does"):
        stored = read_stored(answer.text.strip())
    return pulled(stored, state, reference, required)


def pulled(stored: StoredImage, state: InstalledEngine, reference: str, required: str | None) -> Shipped:
    """Describe the image that an engine pulled; EnvironmentCannot if it is not the `required` one. Pure.

    An engine that names images by their manifests does not tell their identity, so no image of it is known
    to be the required one.
    """
    identity = Identity(stored.id, stored.diff_ids) if state.named_by_configuration else None
    if required is not None and (identity is None or identity.config != required):
        message = f"{reference} is {stored.id}, the manifest asks for {required}"
        advice = "name the image by its digest in the registry, or change `image` in the manifest"
        raise EnvironmentCannot(message, advice=advice)
    return Shipped(stored.id, 0, stored.id not in _names(state), identity)


def _names(state: InstalledEngine) -> Collection[str]:
    """Return the names of the images that an engine had when the node was asked."""
    return {image.id for image in state.images}


def _is_kept(state: InstalledEngine, required: str | None) -> str:
    """Return a shell test of $id, a pulled image: it gets bench's tag if it is new and what was required."""
    if required is not None and not state.named_by_configuration:
        return "false"
    is_new = f"case ' {' '.join(sorted(_names(state)))} ' in *\" $id \"*) false;; esac"
    return is_new if required is None else f'[ "$id" = {shlex.quote(required)} ] && {is_new}'


def _pull_alone(engine: str, reference: str, is_kept: str) -> str:
    """Return shell commands that pull an image and print what it is; `is_kept` is a shell test of $id.

    Afterwards the reference names the image that it named before, or none.
    """
    name = shlex.quote(reference)
    return "; ".join(
        (
            f"before=$({engine} image inspect --format '{{{{.Id}}}}' {name} 2>/dev/null)",
            f"{engine} pull --quiet {name} >/dev/null || exit {_REFUSED}",
            f"line=$({engine} {INSPECT} {name}) || exit",
            'printf "%s\\n" "$line"',
            "id=${line%% *}; id=sha256:${id#sha256:}",
            "set -e",
            # `clean` removes images by this tag.
            f'if {is_kept}; then {engine} tag "$id" {TAG}:"$(printf %.16s "${{id#sha256:}}")"; fi',
            f"case sha256:${{before#sha256:}} in sha256:) {engine} image rm {name} >/dev/null;; "
            f'"$id") ;; *) {engine} tag "$before" {name};; esac',
        )
    )


# What Docker and Podman say when a registry refuses, and what to do.
_REFUSED_PULL = (
    (r"x509|certificate", "let the node trust the registry's authority: /etc/{certificates}/{host}/ca.crt"),
    (r"too ?many ?requests|rate limit", "wait some minutes, or log in there, on the node: {login}"),
    (r"unauthorized|no basic auth|authentication required|denied|forbidden", "log in on the node: {login}"),
    (r"unknown|not found", "the registry has no such image, or shows it only after a login: {login}"),
    (
        r"TLS handshake|HTTPS client",
        "{host} has no TLS: configure it as an insecure registry of {engine} on the node",
    ),
    (r"no such host|dial tcp|timeout", "the node does not reach the registry"),
)


def refused_pull(engine: str, reference: str, said: str) -> EnvironmentCannot:
    """Return the error for an image that an engine does not get from its registry. Pure."""
    host = reference.partition("/")[0]
    fields = {
        "login": f"{engine} login {host}",
        "host": host,
        "engine": engine,
        "certificates": "docker/certs.d" if engine == "docker" else "containers/certs.d",
    }
    found = (what for pattern, what in _REFUSED_PULL if re.search(pattern, said, re.IGNORECASE))
    advice = next(found, "look at {engine} pull on the node").format(**fields)
    advice += "; without --pull, the image is sent from here"
    return EnvironmentCannot(f"{engine} cannot pull {reference}: {said}", advice=advice)


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
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]
        progress(min(start + _CHUNK, len(data)), len(data))
