"""`bench check`: check this node, directly or in a container; print the findings and sign the bundle."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.base.errors import BadInput, nearest, one_line
from bench.base.files import write_whole
from bench.base.strict_json import to_json
from bench.base.sysfs import MOST_CHARACTERS, short_line
from bench.base.terminal import print_json, wrapped
from bench.cli.measuring import on_stderr
from bench.cli.meeting import MeetingArguments, meeting_secret, nodes_of, refuse_half_a_meeting
from bench.cli.stdio import show
from bench.library.sealer import make_sealer
from bench.node_check import check_manifest
from bench.node_check.all_checks import known_checks
from bench.node_check.checks.ports import MOST_NODES
from bench.node_check.judging import WITHOUT_LOAD, Depth
from bench.node_check.judging.finding import EXITS, NAGIOS
from bench.node_check.reason import reason_of
from bench.report.text.check_line import nagios_line, nagios_not_checked

if TYPE_CHECKING:
    from bench.node_check.check_manifest import CheckManifest
    from bench.node_check.judging.standards import Baseline, Past
    from bench.runner.check.check_node import CheckedNode, CheckView
    from bench.runner.check.history import History
    from bench.runner.check.request import CheckRequest
    from bench.runner.check.verdict_change import VerdictChange
    from bench.runner.processes.jobs import Nodes

MOST_FILE_SYSTEMS = 4  # measured in one check, each for half a minute at the level standard


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckArguments(MeetingArguments):
    """The options of `bench check`; `manifest` None: the shipped one; `level` None: the manifest's."""

    manifest: Path | None
    level: Depth | None
    skip: tuple[str, ...]
    scratch: Path | None
    disks: tuple[Path, ...]
    baseline: Path | None
    history: tuple[Path, ...]
    junit: Path | None
    html: Path | None
    metrics: Path | None
    nagios: bool
    reason: bool
    list_checks: bool
    if_idle: bool
    keep_last: int | None
    keep_days: float | None
    keep_gb: float | None
    on_change: list[str] | None  # a command

    @property
    def retention(self) -> dict[str, float]:
        """The given options that limit the kept node checks, by their names."""
        limits = {"--keep-last": self.keep_last, "--keep-days": self.keep_days, "--keep-gb": self.keep_gb}
        return {option: limit for option, limit in limits.items() if limit is not None}


def check(request: CheckArguments) -> int:
    """Check this node or, with --nodes, what is between nodes; return the exit code of the verdict."""
    if request.list_checks:
        return _list_checks()
    _refuse_lonely_nodes(request)
    if request.in_image:
        return _check_in_image(request)
    manifest = check_manifest.load(request.manifest)
    _refuse_skips(request.skip, manifest.require)
    _refuse_unwritable("--scratch", request.scratch)
    _refuse_disks(request.disks)
    _refuse_missing_history(request.history)
    level = "nodes" if request.nodes > 1 else request.level or manifest.level
    _refuse_level_of_nodes(request, level)
    if level == "nodes":
        return _check_between_nodes(request, manifest)
    return _check_node(request, manifest, level, None)


def _check_between_nodes(request: CheckArguments, manifest: CheckManifest) -> int:
    """Check the fabric between this node and others; node 0 judges and has the bundle."""
    from bench.runner.processes.meeting_proxy import open_proxy

    public = request.meet_in_public
    nodes = nodes_of(manifest, request.nodes, request.node, request.meet, in_public=public)
    assert nodes is not None
    with open_proxy(nodes, meeting_secret(request.meet_secret, os.environ)) as nodes:
        if nodes.node == 0:
            return _check_node(request, manifest, "nodes", nodes)
        from bench.runner.check.check_node import follow_check

        progress = _shown_progress()
        follow_check(_work(request, manifest, "nodes", nodes, {}), progress)
        progress.stop()
    print("done: node 0 has the findings and the bundle", file=sys.stderr)
    return 0


def _work(
    request: CheckArguments,
    manifest: CheckManifest,
    level: Depth,
    nodes: Nodes | None,
    past: Mapping[str, Past],
    baseline: Baseline | None = None,
) -> CheckRequest:
    from bench.runner.check.request import CheckRequest

    device: Literal["cpu", "cuda"] = "cpu" if request.on_cpu else "cuda"
    return CheckRequest(
        manifest=manifest,
        level=level,
        out=request.out,
        device=device,
        skip=request.skip,
        scratch=request.scratch,
        history=past,
        disks=tuple(str(disk.resolve()) for disk in request.disks),
        baseline=baseline,
        if_idle=request.if_idle,
        nodes=nodes,
    )


def _check_node(request: CheckArguments, manifest: CheckManifest, level: Depth, nodes: Nodes | None) -> int:
    from bench.runner.check import history

    places = request.history or ((request.out,) if request.out.is_dir() else ())
    earlier = history.read(places, index=not request.history)
    # Imported now, because the imports then take the memory that reading the history has freed.
    from bench.runner.check.check_node import CheckView, GpusInUse, check_node

    progress = CheckView() if request.nagios or request.reason else _shown_progress()
    for reason in earlier.refused if request.history else ():
        progress.say(f"not used as history: {reason}")
    _refuse_without_load(request, level)
    work = _work(request, manifest, level, nodes, earlier.past, _baseline_of(request, progress))
    read_last = level in WITHOUT_LOAD
    sealer = make_sealer(manifest.digest, request.key, request.challenge, on_stderr, read_last=read_last)
    checked = check_node(work, sealer, progress)
    progress.stop()
    if isinstance(checked, GpusInUse):
        return _show_in_use(checked.reason, request)
    return _show(checked, request, _keep_history(checked, request, earlier))


def _baseline_of(request: CheckArguments, progress: CheckView) -> Baseline | None:
    """Read the baseline that --baseline names; None if its folder has no check of this machine yet."""
    if request.baseline is None:
        return None
    from bench.runner.check.baseline import find_baseline

    baseline = find_baseline(request.baseline)
    if baseline is None:
        progress.say(f"no check of this machine in {request.baseline} yet: nothing to compare it with")
    return baseline


def _keep_history(checked: CheckedNode, request: CheckArguments, earlier: History) -> VerdictChange | None:
    """Call the command of --on-change, add the check to the index of --out, and delete old checks.

    A command that fails, or a full disk, is reported on stderr and does not change the verdict.
    """
    from bench.runner.check.check_index import CHANGE_LOCK_NAME, add, last_told, locked
    from bench.runner.check.history import indexed
    from bench.runner.check.verdict_change import tell

    entry, change = indexed(checked.bundle.name, checked.results, checked.evidence), None
    with ExitStack() as stack:
        if request.on_change is not None and checked.results.run.complete:
            with suppress(OSError):  # the command is called even if the disk cannot be written
                stack.enter_context(locked(request.out / CHANGE_LOCK_NAME))
            before = last_told(request.out)
            change = tell(request.on_change, checked.results, checked.bundle, before)
            entry = replace(entry, told=change.after if change and change.error is None else before)
            if change and change.error is not None:
                failed = f"--on-change {shlex.join(request.on_change)}: {change.error}"
                print(one_line(f"{failed}; it is called again after the next check"), file=sys.stderr)
        try:
            add(request.out, [entry])
            known = {} if request.history else earlier.bundles  # with --history, they are of other folders
            _delete_older(request, {**known, entry.bundle: True})
        except OSError as error:
            print(f"the history in {request.out} was not kept: {error}", file=sys.stderr)
    return change


def _delete_older(request: CheckArguments, known: Mapping[str, bool]) -> None:
    if request.retention:
        from bench.runner.check.retention import Retention, delete_older

        limits = Retention(
            checks=request.keep_last or inf,
            seconds=86_400 * (request.keep_days or inf),
            size_bytes=1e9 * (request.keep_gb or inf),
        )
        delete_older(request.out, limits, time.time(), known)


def _shown_progress() -> CheckView:
    """Show the progress on stderr."""
    from bench.runner.check.check_progress import CheckProgress

    return CheckProgress()


def _refuse_lonely_nodes(request: CheckArguments) -> None:
    """Refuse --nodes, --node and --meet without each other, and options that several nodes cannot have."""
    refuse_half_a_meeting(request)
    if not 0 <= request.node < request.nodes:
        message = f"--node {request.node} of --nodes {request.nodes}"
        raise BadInput(message, advice="nodes are counted from 0")
    if request.nodes > MOST_NODES:
        advice = "check groups of them, such as the nodes under a few leaf switches"
        raise BadInput(f"--nodes {request.nodes} is more than {MOST_NODES}", advice=advice)
    if request.nodes > 1 and request.level not in (None, "nodes"):
        raise BadInput(f"--nodes excludes --level {request.level}", advice="leave one of them out")
    if request.nodes > 1 and request.if_idle:
        raise BadInput("--nodes excludes --if-idle: the other nodes would wait", advice="leave one out")


def _refuse_level_of_nodes(request: CheckArguments, level: Depth) -> None:
    if level == "nodes" and request.nodes < 2:
        advice = "run it on each node with --nodes N --node I --meet HOST:PORT, or push it: bench push"
        raise BadInput("the level nodes checks what is between several nodes", advice=advice)


def _refuse_without_load(request: CheckArguments, level: Depth) -> None:
    """Refuse --if-idle and --disk where they have no meaning."""
    if request.disks and (level in WITHOUT_LOAD or level == "nodes"):
        advice = "use --level quick, or leave --disk out"
        raise BadInput(f"--disk: the level {level} measures no file system", advice=advice)
    if request.if_idle and level in WITHOUT_LOAD:
        raise BadInput(
            f"--if-idle: the level {level} puts no load on the node", advice="leave one of them out"
        )
    if request.if_idle and request.challenge is not None:
        raise BadInput(
            "--if-idle cannot be combined with --challenge: a busy node leaves no bundle to certify",
            advice="leave one of them out",
        )


def _show_in_use(reason: str, request: CheckArguments) -> int:
    """Say that --if-idle checked nothing, and return 0: a GPU in use is not a fault of the node."""
    if request.nagios:
        print(nagios_not_checked(reason))
    elif request.as_json:
        print_json({"bundle": None, "not_checked": reason, "results": None})
    else:
        print(f"not checked, its GPUs are in use: {reason}")
    return 0


def _check_in_image(request: CheckArguments) -> int:
    """Run `bench check` in a container, which sees only the manifest, the challenge and --out."""
    from bench.cli.in_container import measure_in_image  # slow to import

    outside = {
        "--scratch": request.scratch,
        "--disk": request.disks,
        "--baseline": request.baseline,
        "--history": request.history,
        "--junit": request.junit,
        "--html": request.html,
        "--metrics": request.metrics,
        "--on-change": request.on_change,
    }
    for option, value in outside.items():
        if value:
            message = f"{option} names a file of this machine, which the container does not see"
            advice = "leave it out: the disk of --out is checked, and its bundles are the history"
            raise BadInput(message, advice=advice)
    options = ["--device", request.device]
    options += ["--json"] if request.as_json else []
    options += ["--nagios"] if request.nagios else []
    options += ["--reason"] if request.reason else []
    options += ["--if-idle"] if request.if_idle else []
    options += [word for option, limit in request.retention.items() for word in (option, str(limit))]
    options += ["--level", request.level] if request.level else []
    options += [word for name in request.skip for word in ("--skip", name)]
    return measure_in_image("check", request.manifest or check_manifest.SHIPPED, request, options)


def _show(checked: CheckedNode, request: CheckArguments, change: VerdictChange | None) -> int:
    """Print the findings, write them to files, and return the exit code."""
    results = checked.results
    if request.junit is not None:
        from bench.report.text.junit import write_junit

        write_junit(request.junit, results, socket.gethostname())
    if request.html is not None:
        from bench.report.pages.check_html import write_check_html

        write_check_html(request.html, results, checked.evidence)
    if request.metrics is not None:
        _write_metrics(request.metrics, checked, change, request)
    if request.nagios:
        print(nagios_line(results))
        return NAGIOS[results.verdict]
    if request.reason:
        print(reason_of(results))
    elif request.as_json:
        document = {"bundle": str(checked.bundle), "results": to_json(results)}
        if request.on_change is not None:
            document["change"] = to_json(change)
        print_json(document)
    else:
        from bench.report.text.check_text import text

        show(text(results))
    print(f"bundle {checked.bundle}", file=sys.stderr)
    if results.run.stopped:
        print(f"incomplete: {results.run.stopped}", file=sys.stderr)
        return 5
    if request.challenge is not None and checked.seal.certificate is None:
        print("no certificate arrived: the bundle's level is self", file=sys.stderr)
        return 5
    return EXITS[results.verdict]


def _write_metrics(
    path: Path, checked: CheckedNode, change: VerdictChange | None, request: CheckArguments
) -> None:
    """Write the whole metrics file, or none of it; a failure is reported on stderr."""
    from bench.report.text.check_metrics import openmetrics

    failed = None if request.on_change is None else change is not None and change.error is not None
    try:
        write_whole(path, openmetrics(checked.results, checked.evidence, failed).encode())
    except OSError as error:
        advice = "name a file in an existing folder that this user may write to"
        print(f"--metrics {path}: not written: {error.strerror}\n  {advice}", file=sys.stderr)


def _refuse_skips(skipped: tuple[str, ...], required: tuple[str, ...]) -> None:
    """Refuse --skip of an unknown check, or of a check that the manifest requires."""
    for name in skipped:
        if name not in known_checks():
            raise BadInput(f"--skip {name}: no such check", advice=nearest(name, known_checks()))
        if name in required:
            raise BadInput(f"--skip {name}: the manifest requires it", advice="leave one of them out")


def _refuse_disks(disks: tuple[Path, ...]) -> None:
    """Refuse a --disk that cannot be measured, or too many."""
    if len(disks) > MOST_FILE_SYSTEMS:
        advice = "measure some of them in another check"
        raise BadInput(f"--disk: at most {MOST_FILE_SYSTEMS} file systems in a check", advice=advice)
    for disk in disks:
        if short_line(str(disk)) != str(disk):
            advice = f"name a folder with printable characters alone, {MOST_CHARACTERS} at most"
            raise BadInput(f"--disk {one_line(str(disk))}: not a printable name", advice=advice)
        _refuse_unwritable("--disk", disk)


def _refuse_unwritable(option: str, folder: Path | None) -> None:
    """Refuse a folder where no file can be created: its check would fail minutes later."""
    try:
        if folder is not None:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        message = f"{option} {folder}: no file can be written in this folder: {error.strerror}"
        advice = "name an existing, writable folder on the disk to check"
        raise BadInput(message, advice=advice) from None


def _refuse_missing_history(places: tuple[Path, ...]) -> None:
    """Refuse a --history that does not exist: without it, a GPU that becomes slower would pass."""
    for place in places:
        if not place.exists():
            advice = "name bundles of earlier checks, or a folder that holds them; it may be empty"
            raise BadInput(f"--history {place}: no such file or folder", advice=advice)


def _list_checks() -> int:
    width = max(map(len, known_checks()))
    lines = [f"{name:<{width}}  {check.question}" for name, check in known_checks().items()]
    print(wrapped(lines, " " * (width + 2)))
    return 0
