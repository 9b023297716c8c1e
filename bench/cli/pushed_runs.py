"""`bench status`, `attach`, `fetch`, `cancel` and `clean`: commands for runs that `bench push` started."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench.base.errors import BadInput, BenchError
from bench.base.strict_json import pretty_json
from bench.cli.push import report_results, shared_with
from bench.cli.push_options import NODES_AT_ONCE
from bench.node_check.check_manifest import load_any
from bench.operator.ssh_keygen import OperatorKey
from bench.push import mirror
from bench.push.push_record import Record, Records
from bench.push.push_to_node import NodePush, PushTask, run_all
from bench.push.remote import Here, Node, Remote, plain
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.screen import Screen
from bench.push.training_group import TrainingGroup
from bench.records.text import seconds_text


@dataclass(frozen=True, slots=True)
class PushedRunsArguments:
    runs: tuple[str, ...]
    as_json: bool = False


def attach(request: PushedRunsArguments) -> int:
    """Watch runs until they end, and fetch their bundles."""
    return _follow(request, wait=True)


def fetch(request: PushedRunsArguments) -> int:
    """Fetch the bundles of runs that have ended."""
    return _follow(request, wait=False)


def _follow(request: PushedRunsArguments, *, wait: bool) -> int:
    records = Records()
    chosen = [r for r in records.find(request.runs) if r.state != "cancelled" or request.runs]
    if not chosen:
        raise BadInput("the newest push was cancelled", advice="name a run; bench status lists them")
    with Screen([record.host for record in chosen]) as screen:
        shared = shared_with(screen, records)
        groups = {r.push: TrainingGroup(r.nodes) for r in chosen if r.nodes > 1 and r.slurm_job is None}
        tasks = [_followed(record, shared, groups.get(record.push), wait=wait) for record in chosen]
        results = run_all(tasks, NODES_AT_ONCE, shared.stop)
    return report_results(results, chosen[0].push, None, as_json=request.as_json)


def _followed(record: Record, shared: Shared, group: TrainingGroup | None, *, wait: bool) -> PushTask:
    request = PushRequest(
        manifest=load_any(record.mirror / "manifest.json"),
        engine=record.engine,
        out=Path(record.out),
        key=OperatorKey.find(Path(record.key) if record.key else None),
        until="fetch" if wait else "start",
        ssh_config=Path(record.ssh_config) if record.ssh_config else None,
        push=record.push,
    )
    push = NodePush(HostPart(record.to_host(), record.local, group=group), request, shared)
    if record.state == "fetched" and record.bundle.exists():
        return PushTask(push, lambda: push.report_fetched(record))
    return PushTask(push, lambda: push.attach(record))


def status(request: PushedRunsArguments) -> int:
    """Print the recorded state of runs, and their present state on the nodes."""
    records = Records()
    chosen = records.find(request.runs) if request.runs else records.all()
    with ThreadPoolExecutor(max_workers=32) as pool:
        states = list(pool.map(_state_on_node, chosen))
    if request.as_json:
        _print_status_json(chosen, states)
        return 0
    rows = [
        (r.run_id, r.push, r.host, r.state, s, _ago(r.began_at), r.bundle if r.bundle.exists() else "")
        for r, s in zip(chosen, states, strict=True)
    ]
    headers = ("run", "push", "host", "state", "on the node", "started", "bundle")
    print(tabulate(rows, headers, disable_numparse=True))
    return 0


def _print_status_json(records: Sequence[Record], states: Sequence[str]) -> None:
    rows = [
        {
            "run": record.run_id,
            "push": record.push,
            "host": record.host,
            "address": record.address,
            "state": record.state,
            "node": state,
            "bundle": str(record.bundle),
        }
        for record, state in zip(records, states, strict=True)
    ]
    sys.stdout.write(pretty_json({"schema": "bench/status/v1", "runs": rows}).decode())


def _state_on_node(record: Record) -> str:
    """Return a run's state and last log line, from its node; "-" if the run was fetched or cancelled."""
    if record.state in ("fetched", "cancelled"):
        return "-"
    with closing(_node_of(record)) as node:
        try:
            looked = mirror.look(node, record)
            last = plain(node.ask(f"tail -n 1 {shlex.quote(record.folder)}/{mirror.LOG}").text.strip())
        except BenchError as error:
            return error.message
    word = f"exit {looked.code}" if looked.state == "exit" else looked.state
    return f"{word}: {last}" if last else word


def _ago(then: int) -> str:
    return f"{seconds_text(max(0.0, time.time() - then))} ago"


def _node_of(record: Record) -> Node:
    if record.local:
        return Here()
    return Remote(record.to_host(), Path(record.ssh_config) if record.ssh_config else None)


def cancel(request: PushedRunsArguments) -> int:
    """Ask runs to end; their measurements so far can be fetched."""
    for record in Records().find(request.runs):
        with closing(_node_of(record)) as node:
            state = mirror.look(node, record).state
            if state in ("alive", "waiting"):
                mirror.cancel(node, record)
                print(f"{record.host}: run {record.run_id} is ending; bench fetch {record.run_id}")
            else:
                print(f"{record.host}: run {record.run_id} is not running ({state})")
    return 0


def clean(request: PushedRunsArguments) -> int:
    """Remove everything of ended runs from their nodes."""
    if not request.runs:
        raise BadInput("clean needs a run", advice="bench clean RUN or HOST; bench status lists runs")
    records = Records()
    for record in records.find(request.runs):
        with closing(_node_of(record)) as node:
            if mirror.look(node, record).state in ("alive", "waiting"):
                raise BadInput(
                    f"run {record.run_id} is still running", where=record.host, advice="bench cancel it first"
                )
            mirror.clean(node, dataclasses.replace(record, keep=False))
        if record.state != "fetched":
            records.move(record, "cancelled")
        print(f"{record.host}: removed everything of run {record.run_id}")
    return 0
