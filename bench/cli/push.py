"""`bench push`, `status`, `attach`, `fetch`, `cancel` and `clean`: from arguments to what is read here."""

from __future__ import annotations

import dataclasses
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput, BenchError, printable
from bench.base.paths import REVOKED, config_path
from bench.base.strict_json import pretty_json
from bench.node_check.any_manifest import load_any
from bench.operator.ssh_keygen import OperatorKey
from bench.push import many_nodes, mirror
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.push_record import Record, Records
from bench.push.push_to_node import NodePush
from bench.push.remote import Here, Node, Remote, plain, refuse_twins
from bench.push.request import GOOD, HostPart, PushRequest, Result, Shared, to_json
from bench.push.screen import Screen, ended
from bench.push.training_group import TrainingGroup
from bench.signing.key_file import default_key_path, load_or_make_key
from bench.signing.revocation import Revoked

if TYPE_CHECKING:
    pass

THIS_MACHINE = Host("this machine", "localhost")


def operator_key(path: Path | None) -> OperatorKey:
    """The one that certifies: given, or bench's own, made at its first use."""
    if path is None and not default_key_path().exists():
        print(f"made a key to certify runs with: {load_or_make_key().path}", file=sys.stderr)
    return OperatorKey.find(path)


def push(request: PushRequest, hosts: Sequence[Host], at_once: int, *, as_json: bool) -> int:
    """To all hosts; without any, to this machine, which then submits to Slurm."""
    refuse_twins(hosts, request.ssh_config)
    request = dataclasses.replace(request, push=secrets.token_hex(3))
    parts = [HostPart(host, node=number, nodes=len(hosts)) for number, host in enumerate(hosts)]
    if request.together:
        at_once = len(hosts)  # they wait for each other
        group = TrainingGroup(len(hosts)) if request.until in ("start", "fetch") else None
        parts = [dataclasses.replace(part, group=group) for part in parts]
    if not hosts:
        parts = [HostPart(THIS_MACHINE, local=True)]
    with Screen([part.host.name for part in parts]) as screen:
        shared = _shared(screen)
        shared.store.tidy(time.time())
        pushes = [NodePush(part, request, shared).run for part in parts]
        results = many_nodes.run_all(pushes, at_once, shared.stop)
    return _report(results, request.push, request, as_json=as_json)


def attach(names: Sequence[str], at_once: int, *, wait: bool, as_json: bool) -> int:
    """Watches until the end, and fetches; or, without waiting, fetches what is over."""
    records = Records()
    chosen = [record for record in records.find(names) if record.state != "cancelled" or names]
    if not chosen:
        raise BadInput("the newest push was cancelled", advice="say which run; bench status lists them")
    with Screen([record.host for record in chosen]) as screen:
        shared = _shared(screen, records)
        groups = {r.push: TrainingGroup(r.nodes) for r in chosen if r.nodes > 1 and r.slurm_job is None}
        pushes = [_attached(record, shared, groups.get(record.push), wait=wait) for record in chosen]
        results = many_nodes.run_all(pushes, at_once, shared.stop)
    return _report(results, chosen[0].push, None, as_json=as_json)


def _attached(
    record: Record, shared: Shared, group: TrainingGroup | None, *, wait: bool
) -> Callable[[], Result]:
    request = PushRequest(
        load_any(record.mirror / "manifest.json"),
        record.engine,
        Path(record.out),
        OperatorKey.find(Path(record.key) if record.key else None),
        until="fetch" if wait else "start",
        ssh_config=Path(record.ssh_config) if record.ssh_config else None,
        push=record.push,
    )
    node_push = NodePush(HostPart(record.to_host(), record.local, group=group), request, shared)
    if record.state == "fetched" and record.bundle.exists():
        return lambda: node_push.report_fetched(record)
    return lambda: node_push.attach(record)


def status(names: Sequence[str], *, as_json: bool) -> int:
    """What is noted here, and what the nodes say of it now."""
    records = Records()
    chosen = records.find(names) if names else records.all()
    with ThreadPoolExecutor(max_workers=32) as pool:
        states = list(pool.map(_asked, chosen))
    if as_json:
        rows = [
            {
                "run": r.run_id,
                "push": r.push,
                "host": r.host,
                "address": r.address,
                "state": r.state,
                "node": s,
                "bundle": str(r.bundle),
            }
            for r, s in zip(chosen, states, strict=True)
        ]
        sys.stdout.write(pretty_json({"schema": "bench/status/v1", "runs": rows}).decode())
        return 0
    from tabulate import tabulate

    table = [
        (r.run_id, r.push, r.host, r.state, s, _ago(r.began_at), r.bundle if r.bundle.exists() else "")
        for r, s in zip(chosen, states, strict=True)
    ]
    print(
        tabulate(table, ("run", "push", "host", "state", "there", "begun", "bundle"), disable_numparse=True)
    )
    return 0


def _asked(record: Record) -> str:
    if record.state in ("fetched", "cancelled"):
        return "-"
    node = node_of(record)
    try:
        found = mirror.look(node, record)
        last = plain(node.ask(f"tail -n 1 {shlex.quote(record.folder)}/{mirror.LOG}").text.strip())
    except BenchError as error:
        return error.message
    finally:
        node.close()
    word = f"exit {found.code}" if found.state == "exit" else found.state
    return f"{word}: {last}" if last else word


def _ago(then: int) -> str:
    from bench.records.text import seconds_text

    return f"{seconds_text(max(0.0, time.time() - then))} ago"


def node_of(record: Record) -> Node:
    if record.local:
        return Here()
    return Remote(record.to_host(), Path(record.ssh_config) if record.ssh_config else None)


def cancel(names: Sequence[str]) -> int:
    """Asks the runs to end; what they have measured can be fetched."""
    records = Records()
    for record in records.find(names):
        node = node_of(record)
        try:
            state = mirror.look(node, record).state
            if state in ("alive", "waiting"):
                mirror.cancel(node, record)
                print(f"{record.host}: run {record.run_id} was asked to end; bench fetch {record.run_id}")
            else:
                print(f"{record.host}: run {record.run_id} is not going on ({state})")
        finally:
            node.close()
    return 0


def clean(names: Sequence[str]) -> int:
    """Leaves nothing of these runs, nor of what they needed, on their nodes."""
    if not names:
        raise BadInput("clean what?", advice="bench clean RUN or HOST; bench status lists them")
    records = Records()
    for record in records.find(names):
        node = node_of(record)
        try:
            if mirror.look(node, record).state in ("alive", "waiting"):
                raise BadInput(
                    f"run {record.run_id} is going on", where=record.host, advice="bench cancel it first"
                )
            mirror.clean(node, dataclasses.replace(record, keep=False))
        finally:
            node.close()
        if record.state != "fetched":
            records.move(record, "cancelled")
        print(f"{record.host}: nothing of run {record.run_id} is left there")
    return 0


# --- what is read here ----------------------------------------------------------------------------------


def _shared(screen: Screen, records: Records | None = None) -> Shared:
    own = config_path(REVOKED)
    revoked = (Revoked.from_file(own),) if own and own.exists() else ()
    return Shared(records or Records(), ImageStore(screen.say), screen, revoked)


def _report(results: Sequence[Result], push_id: str, request: PushRequest | None, *, as_json: bool) -> int:
    code = many_nodes.exit_code(results)
    if as_json:
        manifest = {"manifest": request.manifest.digest} if request else {}
        changed = any(result.changed for result in results)
        document = {"schema": "bench/push/v1", "push": push_id, "exit_code": code, "changed": changed}
        document |= manifest | {"nodes": [to_json(result) for result in results]}
        sys.stdout.write(pretty_json(document).decode())
        return code
    if len(results) == 1:
        _show_one(results[0])
    else:
        _show_many(results)
    return code


def _show_one(result: Result) -> None:
    if result.trained is not None:
        from bench.report.text.run_table import results_table

        print(printable(results_table(result.trained.results, result.trained.slowed)))
    if result.checked is not None:
        from bench.report.text.check_text import text

        print(printable(text(result.checked)))
    if result.verdict is not None:
        print(f"bundle {result.bundle}   level: {result.verdict.level}", file=sys.stderr)


def _show_many(results: Sequence[Result]) -> None:
    from tabulate import tabulate

    trouble_first = sorted(results, key=lambda result: result.exit_code == 0)
    rows = [(r.host, r.outcome, r.run_id or "", ended(r)) for r in trouble_first]
    print(
        tabulate(
            rows, ("host", "state", "run", ""), disable_numparse=True, maxcolwidths=[None, None, None, 100]
        )
    )
    good = sum(result.outcome in GOOD for result in results)
    verdicts = Counter(result.checked.verdict for result in results if result.checked)
    came_to = "".join(f", {count} {verdict}" for verdict, count in verdicts.items())
    print(f"{good} of {len(results)} as asked{came_to}", file=sys.stderr)
    bundles = [str(result.bundle) for result in results if result.bundle]
    if len(bundles) > 1:
        print(f"bench compare {Path(bundles[0]).parent} ranks them", file=sys.stderr)
