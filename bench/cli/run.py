"""`bench run`: measure a manifest's models, directly or in a container; print results, sign the bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import EnvironmentCannot, printable
from bench.base.terminal import print_json
from bench.cli.combinations import chosen_columns
from bench.cli.measuring import on_stderr, signed_text
from bench.cli.meeting import MeetingArguments, meeting_secret, nodes_of, refuse_half_a_meeting
from bench.cli.stdio import show
from bench.library.run import MeasuredRun, RunRequest, lead, refuse_lonely_move
from bench.planning.manifest import Manifest, load_manifest
from bench.records.fastest import without_figures
from bench.records.genuine_gpus import false_gpus
from bench.records.run_results import Results
from bench.report.text.run_table import COLUMN_NAMES, results_table

if TYPE_CHECKING:
    from bench.runner.processes.jobs import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments(MeetingArguments):
    """The options of `bench run`; `budget_seconds` None: the run goes on until it has decided."""

    manifest: Path
    budget_seconds: float | None
    resume: bool
    moved: bool
    columns: tuple[str, ...] | None

    @property
    def shown_columns(self) -> Sequence[str] | None:
        """The columns of the table that --columns names; None: those that fit."""
        return chosen_columns(self.columns, COLUMN_NAMES)


def run(request: RunArguments) -> int:
    """Measure here, in a container, or as one of several nodes; return the exit code."""
    _refuse_ignored_options(request)
    if request.in_image:
        return _run_in_image(request)
    manifest = load_manifest(request.manifest)
    public = request.meet_in_public
    nodes = nodes_of(manifest, request.nodes, request.node, request.meet, in_public=public)
    if nodes is None:
        return _lead(manifest, None, request)
    from bench.runner.processes.meeting_proxy import open_proxy

    with open_proxy(nodes, meeting_secret(request.meet_secret, os.environ)) as nodes:
        return _follow(manifest, nodes, request) if request.node > 0 else _lead(manifest, nodes, request)


def _lead(manifest: Manifest, nodes: Nodes | None, request: RunArguments) -> int:
    """Measure the manifest, alone or with other nodes, and write the bundle."""
    # These imports are slow: mistakes in the options or the manifest are reported before.
    from bench.runner.run.execute import BundleNotWritten
    from bench.runner.run.progress import Progress

    how = RunRequest(
        out=request.out,
        key=request.key,
        challenge=request.challenge,
        budget_seconds=request.budget_seconds,
        resume=request.resume,
        moved=request.moved,
        on_cpu=request.on_cpu,
    )
    try:
        measured = lead(manifest, str(request.manifest), how, Progress(), on_stderr, nodes)
    except BundleNotWritten as error:
        if not request.as_json:
            show(results_table(error.results, chosen=request.shown_columns))
        raise
    _show(measured, request)
    return _ending(measured, challenged=request.challenge is not None)


def _refuse_ignored_options(request: RunArguments) -> None:
    chosen_columns(request.columns, COLUMN_NAMES)
    refuse_half_a_meeting(request)
    refuse_lonely_move(moved=request.moved, challenge=request.challenge, resume=request.resume)


def _follow(manifest: Manifest, nodes: Nodes, request: RunArguments) -> int:
    """Measure the trials that node 0 sends; node 0 writes the bundle."""
    from bench.runner.run.execute import follow
    from bench.runner.run.progress import Progress

    follow(manifest, nodes, Progress(), on_cpu=request.on_cpu)
    return 0


def _run_in_image(request: RunArguments) -> int:
    """Run `bench run` in a container, without the options that name files of this machine."""
    options = ["--device", request.device]
    flags = {"--resume": request.resume, "--moved": request.moved, "--json": request.as_json}
    options += [flag for flag, given in flags.items() if given]
    if request.budget_seconds is not None:
        options += ["--budget", f"{request.budget_seconds}s"]
    if request.columns is not None:
        options += ["--columns", ",".join(request.columns)]
    from bench.cli.in_container import measure_in_image  # slow to import

    return measure_in_image("run", request.manifest, request, options)


def _ending(measured: MeasuredRun, *, challenged: bool) -> int:
    """Print the user's next step, if there is one; return the exit code."""
    if measured.earlier:
        then = "received" if measured.received_at else "bench receive countersigns it"
        print(f"bundle {measured.bundle}   certified by {measured.certified_by}, {then}", file=sys.stderr)
        print("this run was finished before: nothing was measured, nothing written", file=sys.stderr)
        return _exit_code(measured.results)
    if measured.kept:
        print(f"bundle {measured.bundle} is certified, and was not changed", file=sys.stderr)
    else:
        signed = signed_text(measured.signed_by, measured.certified_by)
        print(f"bundle {measured.bundle}   {signed}", file=sys.stderr)
    if measured.stopped:
        print(f"incomplete: {measured.stopped}\n  --resume continues it", file=sys.stderr)
        return 5
    if challenged and measured.certified_by is None:
        level = "" if measured.kept else ": the bundle's level is self"
        print(f"no certificate arrived{level}", file=sys.stderr)
        print("  the same command with --resume asks again, and measures nothing again", file=sys.stderr)
        return 5
    if measured.kept:
        print("  the journal has the new measurements: --challenge FILE --resume signs them", file=sys.stderr)
        return 5
    return _exit_code(measured.results)


def _exit_code(results: Results) -> int:
    """Return 3 if no model has a figure, because every trial failed; else 0."""
    return EnvironmentCannot.exit_code if len(without_figures(results)) == len(results.models) else 0


def _show(measured: MeasuredRun, request: RunArguments) -> None:
    results = measured.results
    if request.as_json:
        print_json(measured.to_json())
    else:
        table = results_table(
            results, measured.slowed, measured.marks, measured.busy_shares, request.shown_columns
        )
        show(table)
    by_reason: dict[str, list[str]] = {}
    for model, reason in without_figures(results).items():
        by_reason.setdefault(reason, []).append(model)
    for reason, models in by_reason.items():
        print(printable(f"no figure for {', '.join(models)}: {reason}"), file=sys.stderr)
    for fault in false_gpus(results.node, results.ceilings):
        print(printable(f"NOT THE GPUS THAT ARE NAMED: {fault}"), file=sys.stderr)
