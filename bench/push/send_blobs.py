"""Send blobs to a node, which are layers or wheels: only the bytes that it lacks, and each blob is verified.

PLACE/blobs/SHA256 is a whole blob. PLACE/blobs/SHA256.part is an incomplete one, which the next attempt
continues. Several pushes may send the same blob; one of them at a time writes it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.stamps import file_sha256
from bench.images.archive import Blob
from bench.push.answers import number, understood
from bench.push.remote import ANSWER_SECONDS, CommandResult, Node, demand

CHUNK = 2**17  # bytes
_ATTEMPTS = 3  # to send a blob, if it arrives with a wrong hash
_STALE_LOOKS = 20  # looks at a part that does not grow, after which its writer is taken for gone
_BUSY, _BUSY_SECONDS = 75, 1.0  # exit code while another push writes the same blob; pause before a new look
Progress = Callable[[int, int], object]  # called with the bytes sent so far, and the total


def send_all(node: Node, place: str, blobs: list[Blob], progress: Progress) -> int:
    """Send blobs one after the other, without the bytes that the node has already; return the bytes sent."""
    sizes = [blob.path.stat().st_size for blob in blobs]
    total, before, sent = sum(sizes), 0, 0
    demand(node, f"umask 077; mkdir -p {shlex.quote(place)}/blobs", f"making {place}")
    progress(0, total)
    for blob, size in zip(blobs, sizes, strict=True):
        sent += _send(node, place, blob, size, partial(_advance, progress, before, total))
        before += size
        progress(before, total)
    return sent


def _advance(progress: Progress, before: int, total: int, count: int) -> None:
    progress(before + count, total)


def _send(node: Node, place: str, blob: Blob, size: int, advance: Callable[[int], object]) -> int:
    """Send one blob and verify its hash on the node, in up to three attempts; return the bytes sent."""
    name = blob.name
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
    """Write a blob from byte `start` on; return False if another push is writing it.

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
    """Return how many bytes of a blob the node has; None if it has the whole, verified blob."""
    answer = demand(
        node,
        f"cd {shlex.quote(place)}/blobs && if [ -f {name} ]; then echo whole; "
        f"elif [ -f {name}.part ]; then wc -c <{name}.part; else echo 0; fi",
        "looking for layers",
    ).strip()
    with understood("the node's answer about its layers has a form that bench's script never prints"):
        return None if answer == "whole" else number(answer)


def pieces_of(path: Path, start: int = 0, advance: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """Yield the chunks of a file from `start` on; after each one, call `advance` with the file's position."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
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
