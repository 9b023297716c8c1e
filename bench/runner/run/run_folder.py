"""The folder of a run: a new one, or that of an unfinished run of the same manifest on the same machine."""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.paths import making_folders
from bench.base.strict_json import canonical_json, to_json
from bench.planning.manifest import Manifest
from bench.records.environment import differences
from bench.records.switches import NOT_SET
from bench.records.trial import NodeFacts
from bench.runner.run import journal as journals

REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES}
SAME_MEMORY = 0.01
MACHINE_ID = Path("/etc/machine-id")


def machine(run_id: str) -> str | None:
    """Tells two equal machines apart, for this run alone. None where a machine has no name."""
    try:
        name = MACHINE_ID.read_bytes().strip()
    except OSError:  # in a container
        return None
    return hashlib.sha256(b"%s %s" % (run_id.encode(), name)).hexdigest()[:16] if name else None


def choose_folder(
    out: Path, manifest: Manifest, node: NodeFacts, resume: bool, run_id: str | None, moved: bool = False
) -> Path:
    """A new run's folder, or the newest unfinished one of the same manifest on the same machine.

    A run that an operator asked for has its id, and goes on even if it was finished: to be signed again,
    because no certificate came in time, or because he asks anew.
    """
    folder = out / (run_id or secrets.token_hex(6))
    with making_folders(out):
        begun = run_id is not None and folder.exists()
    if begun:
        if not resume:
            raise BadInput("this run was begun before", where=str(folder), advice="--resume goes on with it")
        if events := list(journals.read_journal(folder / journals.FILE_NAME)):
            advice = "--out names another directory: there this machine begins the run anew, for the operator"
            require_same(folder, events[0], manifest, node, advice, moved)
        return folder
    if resume and not run_id and (found := _unfinished(out, manifest, node)):
        return found
    with making_folders(out):
        folder.mkdir(parents=True)
    return folder


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """While a run writes there: what a disk refuses is no defect of ours, and loses nothing that was kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        where = str(error.filename or folder)
        advice = f"what was measured is kept in {folder}: --resume goes on with it"
        raise EnvironmentCannot(f"cannot be written: {error.strerror}", where=where, advice=advice) from None


def _unfinished(out: Path, manifest: Manifest, node: NodeFacts) -> Path | None:
    """The newest that this machine can go on with; where there is none, why not with the newest of all."""
    paths = sorted(out.glob(f"*/{journals.FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    refused: BadInput | None = None
    for path in paths:
        if journals.is_of_another(path, manifest.digest):
            continue
        events = list(journals.read_journal(path))
        if not events or events[0].get("manifest") != manifest.digest or events[-1].get("event") == "end":
            continue
        try:
            require_same(path.parent, events[0], manifest, node)
        except BadInput as error:
            refused = refused or error
        else:
            return path.parent
    if refused is not None:
        raise refused
    return None


def require_same(
    folder: Path, header: Mapping[str, Any], manifest: Manifest, node: NodeFacts,
    advice: str = "leave --resume out to start anew", moved: bool = False,
) -> None:  # fmt: skip
    """`moved`: somebody decided that another machine of the same kind goes on; the bundle will say so."""
    if header.get("manifest") != manifest.digest:
        raise BadInput("was begun with another manifest", where=str(folder))
    begun, here = header.get("machine"), machine(folder.name)
    known, found = header.get("node"), to_json(node)
    if moved:
        known, found = _kind(known), _kind(found)
    if isinstance(known, dict) and _as_good_as(known.get("memory_bytes"), node.memory_bytes):
        known = known | {"memory_bytes": node.memory_bytes}
    elsewhere = not moved and begun is not None and here is not None and begun != here
    if elsewhere or canonical_json(known) != canonical_json(found):
        raise BadInput(
            f"was begun on another machine or software stack{_differences(known, found)}; "
            "results must not be mixed",
            where=str(folder),
            advice=advice,
        )
    if header.get("bench") != __version__:
        raise BadInput(f"was begun by bench {header.get('bench')}", where=str(folder))


def _differences(begun: Any, here: Mapping[str, Any]) -> str:
    """By name: what nobody thinks of, most of all."""
    if not isinstance(begun, dict):
        return ""
    different = [
        *differences(_texts(here), _texts(begun), "none"),
        *differences(_texts(here["packages"]), _texts(begun.get("packages")), "none"),
        *differences(_texts(here["switches"]), _texts(begun.get("switches")), NOT_SET),
    ]
    return f" ({'; '.join(different)})" if different else ""


def _texts(fields: Mapping[str, Any] | None) -> dict[str, str]:
    """What is plain enough to be named."""
    return {name: str(value) for name, value in (fields or {}).items() if isinstance(value, str | int)}


def _as_good_as(bytes_then: Any, bytes_now: int) -> bool:
    """The same memory: from one start of a machine to the next, its kernel keeps a little more or less."""
    return isinstance(bytes_then, int) and abs(bytes_then - bytes_now) <= SAME_MEMORY * bytes_now


def _kind(node: Any) -> Any:
    """Of a machine, all but which one it is: a run may go on where the last node was lost."""
    if not isinstance(node, dict):
        return node
    return node | {"gpus": [{**gpu, "uuid": ""} for gpu in node.get("gpus", [])]}
