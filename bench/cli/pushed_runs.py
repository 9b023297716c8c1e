"""`bench status`, `attach`, `fetch`, `cancel` and `clean`: commands for runs that `bench push` started."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.cli.push import report_results, shared_with
from bench.cli.push_options import NODES_AT_ONCE
from bench.node_check.check_manifest import load_any
from bench.operator.ssh_keygen import OperatorKey
from bench.push import mirror
from bench.push.all_hosts import PushTask, run_all
from bench.push.answers import short
from bench.push.connection import plain
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.kubernetes.push_to_pods import PodPush, leave
from bench.push.push_record import NOTHING_PUSHED, Record, Records
from bench.push.push_to_node import NodePush
from bench.push.remote import Here, Node, Remote
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.screen import Screen
from bench.push.terminal import tell, tell_json, tell_table
from bench.push.threads import in_threads, wait_for_all
from bench.push.training_group import TrainingGroup
from bench.records.text import seconds_text

RUNNING = ("alive", "waiting")
END_SECONDS = 60.0  # for a run that was asked to end to pack its results
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PushedRunsArguments:
    """The options of `bench status`, `attach`, `fetch`, `cancel`, `clean`; no `runs`: the newest push."""

    runs: tuple[str, ...]
    as_json: bool = False
    kill: bool = False
    detach: bool = False


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
    kind = PodPush if record.pod else NodePush
    push = kind(HostPart(record.to_host(), record.local, group=group), request, shared)
    if record.state == "fetched" and record.bundle.exists():
        return PushTask(push, lambda: push.report_fetched(record))
    return PushTask(push, lambda: push.attach(record))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of a command about one run: the run's state, the action taken, or the error of its node."""

    text: str
    code: int = 0  # exit code of the trouble
    advice: str = ""


def status(request: PushedRunsArguments) -> int:
    """Print the recorded state of runs, and their present state on the nodes."""
    records = Records()
    chosen = records.find(request.runs) if request.runs else records.all()
    if not chosen and not request.as_json:
        tell(NOTHING_PUSHED)
        return 0
    asked = _asked(chosen, _state_on_node)
    wait_for_all(asked)
    answers = [future.result() for future in asked]
    if request.as_json:
        _print_status_json(chosen, [answer.text for answer in answers])
        return worst_code(answers)
    rows = [
        (r.run_id, r.push, r.host, r.state, a.text, _ago(r.began_at), r.bundle if r.bundle.exists() else "")
        for r, a in zip(chosen, answers, strict=True)
    ]
    tell_table(("run", "push", "host", "state", "on the node", "started", "bundle"), rows)
    return worst_code(answers)


def worst_code(answers: Sequence[NodeAnswer]) -> int:
    """Return the highest exit code; 0 without answers."""
    return max((answer.code for answer in answers), default=0)


def _asked(records: Sequence[Record], ask: Callable[[Node, Record], NodeAnswer]) -> list[Future[NodeAnswer]]:
    """Ask the nodes of all runs at the same time; a node's error is its own answer and affects no other."""
    return in_threads([partial(_answer, record, ask) for record in records], NODES_AT_ONCE)


def _answer(record: Record, ask: Callable[[Node, Record], NodeAnswer]) -> NodeAnswer:
    with closing(_node_of(record)) as node:
        try:
            return ask(node, record)
        except BenchError as error:
            where = f"{error.where}: " if error.where not in (None, record.host) else ""
            return NodeAnswer(f"{where}{error.message}", error.exit_code, error.advice or "")
        except Exception as error:  # as in a push: an unexpected error at one node must not end the others
            what = f"{type(error).__name__}: {error}"
            return NodeAnswer(what, EnvironmentCannot.exit_code, "a defect of bench: please report it")


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
    tell_json({"schema": "bench/status/v1", "runs": rows})


def _state_on_node(node: Node, record: Record) -> NodeAnswer:
    """Return a run's state and last log line, from its node; "-" if the run was fetched or cancelled."""
    if record.state in ("fetched", "cancelled"):
        return NodeAnswer("-")
    looked = _look(node, record)
    last = short(plain(mirror.last_line(node, record))) if looked.state != "gone" else ""
    word = f"exit {looked.code}" if looked.state == "exit" else looked.state
    return NodeAnswer(f"{word}: {last}" if last else word)


def _look(node: Node, record: Record) -> mirror.Status:
    """Ask a node for the status of a run; a run whose pod is gone is gone."""
    try:
        return mirror.look(node, record)
    except PodGone:
        return mirror.Status("gone", None, {}, None, None)


def _ago(then: int) -> str:
    return f"{seconds_text(max(0.0, time.time() - then))} ago"


def _node_of(record: Record) -> Node:
    if record.local:
        return Here()
    if record.pod is not None:
        return PodNode.of(record)
    return Remote(record.to_host(), Path(record.ssh_config) if record.ssh_config else None)


def cancel(request: PushedRunsArguments) -> int:
    """End runs, and wait until they have ended; measurements so far are kept."""
    ask = _ask_to_end if request.detach else partial(_end, KILL if request.kill else CANCEL)
    return _tell_each(Records().find(request.runs), ask)


def clean(request: PushedRunsArguments) -> int:
    """Remove everything of ended runs from their nodes."""
    if not request.runs:
        raise BadInput("clean needs a run", advice="bench clean RUN or HOST; bench status lists runs")
    records = Records()
    return _tell_each(records.find(request.runs), partial(_clean, records))


def _tell_each(records: Sequence[Record], ask: Callable[[Node, Record], NodeAnswer]) -> int:
    """Print the answer of each node, errors on stderr; return the worst exit code."""
    answers = []
    for record, future in zip(records, _asked(records, ask), strict=True):
        wait_for_all([future])
        answer = future.result()
        advice = f"  ({answer.advice})" if answer.advice else ""
        tell(f"{record.host}: {answer.text}{advice}", file=sys.stderr if answer.code else sys.stdout)
        answers.append(answer)
    return worst_code(answers)


def _ask_to_end(node: Node, record: Record) -> NodeAnswer:
    return _ended(node, record, mirror.cancel) or NodeAnswer(
        f"run {record.run_id} was asked to end; bench fetch {record.run_id}"
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """A way to end a run, and its messages, in which {run} stands for the run's id."""

    end: Callable[[Node, Record], None]
    done: str
    done_so_far: str  # if the run still goes on after END_SECONDS
    advice: str  # in that case


CANCEL = Ending(
    mirror.cancel,
    done="has ended; bench fetch {run}",
    done_so_far="was asked to end",
    advice="bench cancel --kill {run} ends it without a bundle; a new push resumes it from its journal",
)
KILL = Ending(
    mirror.kill,
    done="was killed; a new push resumes it from its journal",
    done_so_far="was killed",
    advice="its processes wait for the kernel, as with a driver that hangs: look at the node's kernel log",
)


def _end(ending: Ending, node: Node, record: Record) -> NodeAnswer:
    """End a run, and wait until it has ended."""
    run = record.run_id
    if answer := _ended(node, record, ending.end):
        return answer
    if _ends(node, record):
        return NodeAnswer(f"run {run} {ending.done.format(run=run)}")
    text = f"run {run} still runs {END_SECONDS:.0f} s after it {ending.done_so_far}"
    return NodeAnswer(text, EnvironmentCannot.exit_code, ending.advice.format(run=run))


def _ended(node: Node, record: Record, end: Callable[[Node, Record], None]) -> NodeAnswer | None:
    """Call `end` if the run is running; otherwise return an answer that says so."""
    if (state := _look(node, record).state) not in RUNNING:
        return NodeAnswer(f"run {record.run_id} is not running ({state})")
    end(node, record)
    return None


def _ends(node: Node, record: Record) -> bool:
    """Wait until a run has ended; return whether it did within END_SECONDS."""
    deadline = time.monotonic() + END_SECONDS
    while _look(node, record).state in RUNNING:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _clean(records: Records, node: Node, record: Record) -> NodeAnswer:
    if _look(node, record).state in RUNNING:
        raise BadInput(
            f"run {record.run_id} is still running", advice=f"bench cancel {record.run_id} ends it"
        )
    if record.pod is not None:
        leave(node, record, records)
    else:
        mirror.clean(node, dataclasses.replace(record, keep=False))
    if record.state != "fetched":
        records.move(record, "cancelled")
    return NodeAnswer(f"removed everything of run {record.run_id}")
