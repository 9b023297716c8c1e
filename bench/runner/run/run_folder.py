"""Choose the folder of a run: a new one, or that of an unfinished run to continue.

A run continues only with the same manifest, on the same machine, with the same versions.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.paths import making_folders
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json, to_json
from bench.planning.manifest import Manifest
from bench.records.switches import NOT_SET, differences
from bench.records.trial import NodeFacts
from bench.runner.run import journal as journals

# Errors of a disk that is full, broken or closed to us: the user can fix them, bench cannot.
REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES}
SAME_MEMORY = 0.01  # share by which a machine's memory may differ from one boot to the next
MACHINE_ID = Path("/etc/machine-id")


def machine(run_id: str) -> str | None:
    """Return a name of this machine that means nothing outside this run; None without a machine id."""
    try:
        name = MACHINE_ID.read_bytes().strip()
    except OSError:  # a container has no machine id
        return None
    return sha256(b"%s %s" % (run_id.encode(), name))[:16] if name else None


def choose_folder(
    out: Path, manifest: Manifest, node: NodeFacts, run_id: str | None, *, resume: bool, moved: bool = False
) -> Path:
    """Return the folder of a new run, or of the newest unfinished run to continue if `resume`.

    A run for an operator's challenge has a `run_id`. Even a finished run continues, to be signed
    again, if no certificate came in time or there is a new challenge. BadInput if the run in that folder
    cannot continue on this machine.
    """
    folder = out / (run_id or secrets.token_hex(6))
    with making_folders(out):
        begun = run_id is not None and folder.exists()
    if begun:
        if not resume:
            raise BadInput("this run was begun before", where=str(folder), advice="--resume goes on with it")
        if events := list(journals.read_journal(folder / journals.FILE_NAME)):
            advice = "--out names another directory: there this machine starts the operator's run over"
            require_same(folder, events[0], manifest, node, advice, moved=moved)
        return folder
    if resume and not run_id and (unfinished := _unfinished(out, manifest, node)):
        return unfinished
    with making_folders(out):
        folder.mkdir(parents=True)
    return folder


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Turn an OSError of a full or broken disk into EnvironmentCannot, which names where results are kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        where = str(error.filename or folder)
        advice = f"what was measured is kept in {folder}: --resume goes on with it"
        raise EnvironmentCannot(f"cannot be written: {error.strerror}", where=where, advice=advice) from None


def _unfinished(out: Path, manifest: Manifest, node: NodeFacts) -> Path | None:
    """Return the newest unfinished run that this machine can continue; None if there is no unfinished run.

    BadInput, which says why the newest run cannot continue, if no unfinished run can.
    """
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
            return path.parent
        except BadInput as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return None


def require_same(
    folder: Path,
    header: Mapping[str, Any],
    manifest: Manifest,
    node: NodeFacts,
    advice: str = "leave --resume out to start over",
    *,
    moved: bool = False,
) -> None:
    """Raise BadInput unless the run with this journal header can continue on `node`.

    `moved`: the user decided that another machine of the same kind continues the run; the bundle will say so.
    """
    if header.get("manifest") != manifest.digest:
        raise BadInput("was begun with another manifest", where=str(folder), advice=advice)
    machine_then, machine_now = header.get("machine"), machine(folder.name)
    node_then, node_now = (_without_places(found) for found in (header.get("node"), to_json(node)))
    if moved:
        node_then, node_now = _without_identity(node_then), _without_identity(node_now)
    if isinstance(node_then, dict) and _same_memory(node_then.get("memory_bytes"), node.memory_bytes):
        node_then = node_then | {"memory_bytes": node.memory_bytes}
    other_machine = not moved and None not in (machine_then, machine_now) and machine_then != machine_now
    if other_machine or canonical_json(node_then) != canonical_json(node_now):
        raise BadInput(
            f"was begun on another machine or software stack{_differences(node_then, node_now)}; "
            "results must not be mixed",
            where=str(folder),
            advice=advice,
        )
    if header.get("bench") != __version__:
        raise BadInput(f"was begun by bench {header.get('bench')}", where=str(folder), advice=advice)


def _differences(begun: Any, here: Mapping[str, Any]) -> str:
    """Return the differences between two nodes, by name, in parentheses; "" if no difference has a name."""
    if not isinstance(begun, dict):
        return ""
    different = [
        *differences(_texts(here), _texts(begun), "none"),
        *differences(_texts(here["packages"]), _texts(begun.get("packages")), "none"),
        *differences(_texts(here["switches"]), _texts(begun.get("switches")), NOT_SET),
    ]
    return f" ({'; '.join(different)})" if different else ""


def _texts(fields: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the fields that are text or a number, as text."""
    return {name: str(value) for name, value in (fields or {}).items() if isinstance(value, str | int)}


def _same_memory(bytes_then: Any, bytes_now: int) -> bool:
    """True if both may be one machine's memory: a kernel reserves a little more or less at each boot."""
    return isinstance(bytes_then, int) and abs(bytes_then - bytes_now) <= SAME_MEMORY * bytes_now


def _without_places(node: Any) -> Any:
    """Return the node without the places of its GPUs and the kernel's list, which a reboot may change."""
    if not isinstance(node, dict):
        return node
    gpus = [{name: value for name, value in gpu.items() if name != "bus"} for gpu in node.get("gpus", [])]
    return {name: value for name, value in node.items() if name != "kernel_gpus"} | {"gpus": gpus}


def _without_identity(node: Any) -> Any:
    """Return the node without its GPUs' UUIDs, by which machines of the same kind are equal."""
    if not isinstance(node, dict):
        return node
    return node | {"gpus": [{**gpu, "uuid": ""} for gpu in node.get("gpus", [])]}
