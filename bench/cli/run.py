"""`bench run`: measure a manifest's models, directly or in a container; print results, sign the bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from bench.base.errors import BadInput, EnvironmentCannot, printable
from bench.base.files import read_bounded
from bench.base.terminal import print_json
from bench.cli.arguments import is_host_and_port, refuse_public_meeting
from bench.cli.combinations import chosen_columns
from bench.cli.measuring import MeetingArguments, on_stderr, refuse_half_a_meeting, signed_text
from bench.cli.stdio import show
from bench.library.run import MeasuredRun, RunRequest, lead, refuse_lonely_move
from bench.node_check.check_manifest import AnyManifest
from bench.planning.manifest import Manifest, load_manifest
from bench.records.fastest import without_figures
from bench.records.genuine_gpus import false_gpus
from bench.records.run_results import Results
from bench.report.text.run_table import COLUMN_NAMES, results_table

if TYPE_CHECKING:
    from bench.runner.processes.jobs import Nodes

SECRET = "BENCH_MEET_SECRET"  # environment variable with the secret of nodes that train together
SECRET_BYTES_LEAST, SECRET_BYTES_MOST = 32, 4096


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


def nodes_of(
    manifest: AnyManifest, count: int, node: int, meet: str | None, *, in_public: bool = False
) -> Nodes | None:
    """Return the nodes that work together, from --nodes, --node and --meet; None for a single node."""
    if count == 1 and node == 0:
        return None
    if count < 1 or not 0 <= node < count:
        raise BadInput(f"--node {node} of --nodes {count}", advice="nodes are counted from 0")
    if meet is None or not is_host_and_port(meet):
        raise BadInput(f"--meet {meet} is not HOST:PORT", advice="a port of node 0 that all nodes reach")
    refuse_public_meeting("--meet", meet, allowed=in_public)
    from bench.runner.processes.jobs import Nodes

    return Nodes(count, node, meet, manifest.digest.removeprefix("sha256:")[:12])


def meeting_secret(file: Path | None, environment: Mapping[str, str]) -> bytes:
    """Return the secret that all nodes of a meeting have; BadInput if there is none, or a short one."""
    advice = f"openssl rand -hex 32 > secret on one node; the same file on all: --meet-secret, or {SECRET}"
    if file is not None:
        where = str(file)
        secret = read_bounded(
            file, SECRET_BYTES_MOST, what="the secret", too_large="larger than 4 KiB"
        ).strip()
    elif SECRET in environment:
        where, secret = SECRET, environment[SECRET].strip().encode()
    else:
        raise BadInput("--meet without a secret: anyone who reaches the port could join", advice=advice)
    if len(secret) < SECRET_BYTES_LEAST:
        short = f"a secret of {len(secret)} bytes can be guessed: {SECRET_BYTES_LEAST} are needed"
        raise BadInput(short, where=where, advice=advice)
    return secret


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
    return measure_in_image("run", request.manifest, request, options)


def measure_in_image(
    verb: Literal["run", "check"], manifest: Path, request: MeetingArguments, options: list[str]
) -> int:
    """Run `bench VERB` in a container, which gets a network and the secret if it is one of several nodes."""
    from bench.cli.image import run_in_image

    if request.nodes <= 1:
        return run_in_image(verb, manifest, request, options, challenge=request.challenge)
    options += [f"--nodes={request.nodes}", f"--node={request.node}", f"--meet={request.meet}"]
    options += ["--meet-in-public"] if request.meet_in_public else []
    with _readable_in_container(meeting_secret(request.meet_secret, os.environ)) as secret:
        return run_in_image(verb, manifest, request, options, challenge=request.challenge, meet_secret=secret)


@contextmanager
def _readable_in_container(secret: bytes) -> Iterator[Path]:
    """Yield a file with the secret that a container's user can read, in a folder that is closed to others."""
    with TemporaryDirectory(prefix="bench-meet-") as folder:
        path = Path(folder) / "secret"
        path.write_bytes(secret)
        path.chmod(0o444)
        yield path


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
        show(results_table(results, measured.slowed, measured.marks, request.shown_columns))
    by_reason: dict[str, list[str]] = {}
    for model, reason in without_figures(results).items():
        by_reason.setdefault(reason, []).append(model)
    for reason, models in by_reason.items():
        print(printable(f"no figure for {', '.join(models)}: {reason}"), file=sys.stderr)
    for fault in false_gpus(results.node, results.ceilings):
        print(printable(f"NOT THE GPUS THAT ARE NAMED: {fault}"), file=sys.stderr)
