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
from bench.codec import canonical_json, to_json
from bench.errors import BadInput, EnvironmentCannot
from bench.manifest import Manifest
from bench.places import making_folders
from bench.result import NodeFacts
from bench.runner import journal as journals
from bench.switches import NOT_SET
from bench.words import here_and_there

REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES}
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
    paths = sorted(out.glob(f"*/{journals.FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        events = list(journals.read_journal(path))
        if not events or events[0].get("manifest") != manifest.digest or events[-1].get("event") == "end":
            continue
        require_same(path.parent, events[0], manifest, node)
        return path.parent
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
    elsewhere = not moved and begun is not None and here is not None and begun != here
    if elsewhere or canonical_json(known) != canonical_json(found):
        raise BadInput(
            f"was begun on another machine or software stack{_switches(known, found)}; "
            "results must not be mixed",
            where=str(folder),
            advice=advice,
        )
    if header.get("bench") != __version__:
        raise BadInput(f"was begun by bench {header.get('bench')}", where=str(folder))


def _switches(begun: Any, here: Any) -> str:
    """What nobody thinks of is named."""
    there, ours = ((node.get("switches") if isinstance(node, dict) else None) or {} for node in (begun, here))
    different = "; ".join(here_and_there(ours, there, NOT_SET))
    return f" ({different})" if different else ""


def _kind(node: Any) -> Any:
    """Of a machine, all but which one it is: a run may go on where the last node was lost."""
    if not isinstance(node, dict):
        return node
    return node | {"gpus": [{**gpu, "uuid": ""} for gpu in node.get("gpus", [])]}
