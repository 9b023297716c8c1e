"""Share a node's folder between several pushes at a time; several nodes may have the folder in one home.

PLACE/.claim-PUSH    a push uses the shared files; the push refreshes this file for as long as it does
PLACE/.load-PUSH/    files that only this push needs, until it has shipped
PLACE/.old-NAME/     files that were set aside and are being deleted

Three rules keep one push from breaking or deleting the files of another:

1. Only a push that holds a claim makes and uses shared folders.
2. Only a push that has the lock, and finds no other claim, removes them; files that runs need only if there
   is no run.
3. Removing is renaming, so that the lock is held for a moment only.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.names import ENGINES_WITH_STORE
from bench.push.connection import Unreachable
from bench.push.place_lock import locked
from bench.push.remote import ANSWER_BYTES, ANSWER_SECONDS, CommandResult, Node

SHARED_FOLDERS = ("blobs", "code", "environments", "images", "packages", "pythons", "runs")
TAG, OLD_TAG = "bench-push", "bench-old"  # names of an engine's images: brought by a push; being removed
_CLAIMED_MINUTES = 60  # after which a claim that is not refreshed no longer counts: its push was killed
_REFRESH_SECONDS = 60
_TAG_SECONDS = 20  # for an engine to give an image another tag, while the lock is held


@dataclass(frozen=True, slots=True)
class PlaceClaim:
    """The claim of one push to the shared files in a node's folder."""

    place: str
    push: str  # its name, and its node's number in it

    @property
    def path(self) -> str:
        """Path of the claim's file, which keeps other pushes from deleting the shared files."""
        return f"{self.place}/.claim-{self.push}"

    @property
    def staging(self) -> str:
        """Name of a folder in the place, for files that no other push uses."""
        return f".load-{self.push}"

    @property
    def take(self) -> str:
        """Shell commands that make the claim; files that exist from then on stay."""
        return f"umask 077; {locked(self.place, f': >{shlex.quote(self.path)}')}"

    @property
    def release(self) -> str:
        """Shell commands that end the claim, and delete the files that only this push needed."""
        return f"rm -rf {shlex.quote(f'{self.place}/{self.staging}')} {shlex.quote(self.path)}"

    def refreshed_during(self, script: str) -> str:
        """Return shell commands that keep the claim fresh for as long as a script runs."""
        claim = shlex.quote(self.path)
        # The sleep is ended with the loop: it would outlive the script by up to a minute.
        loop = (
            f"trap 'kill $!; exit' TERM; while kill -0 $$ && touch -c {claim}; do "
            f"sleep {_REFRESH_SECONDS} & wait $!; done"
        )
        return (
            f"( {loop} ) </dev/null >/dev/null 2>&1 & fresh=$!; trap 'kill $fresh 2>/dev/null' EXIT; {script}"
        )

    def discard(self, paths: Iterable[str]) -> str:
        """Return shell commands that delete files of the place, unless another push may need them."""
        names = " ".join(map(shlex.quote, paths))
        choose = f"if {_no_claim(self.push)}; then for f in {names}; do aside; done; {_REMOVE_EMPTY}; fi"
        return _deleting(self.place, self.push, choose)


class ClaimedNode:
    """A node on which every script keeps a push's claim fresh for as long as it runs."""

    def __init__(self, node: Node, claim: PlaceClaim) -> None:
        self._node, self.claim = node, claim

    def ask(
        self,
        script: str,
        pieces: Iterable[bytes] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        most_bytes: int = ANSWER_BYTES,
    ) -> CommandResult:
        """Run a script as `Node.ask` does, and keep the claim fresh meanwhile."""
        script = self.claim.refreshed_during(script)
        return self._node.ask(script, pieces, seconds=seconds, most_bytes=most_bytes)

    def read(
        self, script: str, take: Callable[[bytes], object], *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        """Run a script as `Node.read` does, and keep the claim fresh meanwhile."""
        return self._node.read(self.claim.refreshed_during(script), take, seconds=seconds)

    def close(self) -> None:
        """End the node's connection; the claim stays until it is released or too old."""
        self._node.close()


@contextmanager
def claimed(node: Node, claim: PlaceClaim) -> Iterator[ClaimedNode]:
    """Hold a claim within the context; EnvironmentCannot if the place cannot be written to.

    After a lost connection the claim stays, because a script on the node may still be running.
    """
    taken = node.ask(claim.take)
    if taken.code:
        raise EnvironmentCannot(f"writing failed: {taken.reason}", where=claim.place)
    lost = False
    try:
        yield ClaimedNode(node, claim)
    except Unreachable:
        lost = True
        raise
    finally:
        if not lost:
            with suppress(BenchError):
                node.ask(claim.release)


def one_at_a_time(lock: str, script: str) -> str:
    """Return shell commands that wait until no other push runs a script with this lock, and run one.

    `lock` is the path of a file, as a shell word. On file systems without locks they do not wait. Programs
    that the script leaves behind do not hold the lock.
    """
    return f"{{ flock 9; ( {script} ) 9>&-; }} 9>>{lock}"


_REMOVE_EMPTY = f"rmdir {' '.join(SHARED_FOLDERS)} 2>/dev/null"


def _no_claim(but: str = "") -> str:
    """Return a shell test, in the place, that no push has a claim, except for the push `but`."""
    others = f"! -name {shlex.quote(f'.claim-{but}')} " if but else ""
    return f"[ -z \"$(find . -maxdepth 1 -name '.claim-*' {others}-mmin -{_CLAIMED_MINUTES})\" ]"


def _deleting(place: str, name: str, choose: str) -> str:
    """Return shell commands that delete the files that `choose` sets aside.

    `choose` runs with the lock, and calls `aside` with a file in $f. Files that a killed push of this name
    had set aside are deleted too.
    """
    own = f".old-{name}"
    old = shlex.quote(f"{place}/{own}")
    aside = (
        f'aside() {{ [ ! -e "$f" ] || [ "$f" = {shlex.quote(own)} ] || {{ mkdir -p {old}/"${{f%%/*}}"; '
        f'chmod u+w "$f"; mv "$f" {old}/"${{f%%/*}}"; }}; }}'
    )
    delete = f"[ ! -e {old} ] || {{ chmod -R u+w {old}; rm -rf {old}; }}"
    chosen = locked(place, f"cd {shlex.quote(place)} && {{ {aside}; {choose}; }}")
    return f"{delete}; {chosen}; code=$?; {delete}; ( exit $code )"


# Only files named by a digest are deleted: the user may keep other files in the place.
_OURS = (
    "for f in blobs/* packages/* images/* code/* environments/* pythons/*; do "
    "n=${f##*/}; n=${n%.part*}; n=${n%.new}; n=${n%.sif}; case $n in *[!0-9a-f]*) ;; *) case ${#n} in "
    "16|64) aside;; esac;; esac; done; for f in .load .load-* .claim-* .pull-* .request-* .old-* "
    "environments/.lock environments/.new-* code/.new-* pythons/.new-*; do aside; done"
)


def empty(place: str, name: str, engine: str) -> str:
    """Return shell commands that delete everything that pushes brought to a place, unless it is still needed.

    A claim or a run needs it. `name` is unique to the deleting command; `engine` is the engine whose images
    of bench are removed too.
    """
    # Claims come first: a push makes its run's folder before it releases its claim. A folder that can be
    # removed is empty, also where a network file system shows an older list of what is in it.
    idle = f"{_no_claim()} && {{ rmdir runs 2>/dev/null || [ ! -e runs ]; }}"
    untag, remove = (
        ("", "") if engine not in ENGINES_WITH_STORE else (_untag(engine), remove_untagged(engine))
    )
    deleting = _deleting(place, name, f"if {idle}; then {_OURS}; {_REMOVE_EMPTY}; {untag}fi")
    where = shlex.quote(place)
    return f"[ ! -d {where} ] || {{ {deleting}; {remove}rmdir {where} 2>/dev/null; }}"


def _untag(engine: str) -> str:
    """Return shell commands that quickly give images of bench the tag by which they are removed later."""
    limit = f"timeout {_TAG_SECONDS} {engine}"
    return (
        f'for tag in $({limit} {_list_tags(TAG)}); do {limit} tag "$tag" "{OLD_TAG}:${{tag##*:}}" && '
        f'{limit} image rm "$tag"; done >/dev/null 2>&1; '
    )


def remove_untagged(engine: str) -> str:
    """Return shell commands that remove an engine's images which nobody claimed when they were untagged."""
    return (
        f'for tag in $({engine} {_list_tags(OLD_TAG)}); do {engine} image rm "$tag"; done >/dev/null 2>&1; '
    )


def _list_tags(name: str) -> str:
    return f"image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' {name} 2>/dev/null"
