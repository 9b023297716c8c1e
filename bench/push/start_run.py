"""A run's beginning: noted here first, challenged, then started there."""

from __future__ import annotations

import dataclasses
import re

from bench.base.paths import ledger_path
from bench.bundle.handshake import write
from bench.images.container import NOBODY
from bench.images.variants import find_variant
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.push import mirror, run_script
from bench.push.image_store import variant_name
from bench.push.preflight_and_ship import ChosenEngine
from bench.push.push_record import Record, now
from bench.push.ship import Shipped
from bench.push.visit import Visit


def begin(t: Visit, chosen: ChosenEngine, landed: Shipped, before: Record | None) -> Record:
    t.phase("start")
    record = _note(t, chosen, landed, before)
    t.but(run_id=record.run_id, changed=True)
    job = _job(t, chosen, landed, record)
    challenge = b"{}" if record.follows else _challenge(t, record)
    run_script.prepare(t.node, job, t.order.manifest.data, challenge)
    owner = f"{NOBODY}:{NOBODY}" if job.user[0] == NOBODY and job.engine != "none" else ""
    if before and not job.checks and mirror.settle_journal(t.node, record, owner):
        t.say(f"what was mirrored of run {record.run_id} is there again")
    slurm_job = run_script.start(t.node, job)
    (record.mirror / "run.sh").write_text(run_script.script(job))
    return t.shared.records.move(record, "running", slurm_job=slurm_job)


def _note(t: Visit, chosen: ChosenEngine, landed: Shipped, before: Record | None) -> Record:
    """Noted before anything starts: a run that nobody knows of could not be fetched."""
    order, host = t.order, t.part.host
    if before is not None:
        return t.shared.records.save(
            dataclasses.replace(
                before,
                user=host.user,
                identity=str(host.identity) if host.identity else None,
                ssh_config=str(order.ssh_config) if order.ssh_config else None,
                python=host.python,
                key=str(order.key.path),
                place=chosen.found.place,
                engine=chosen.engine,
                valid_seconds=order.valid_seconds,
                keep=order.keep,
            )
        )
    with Ledger(ledger_path(order.ledger)) as ledger:
        run_id = certify_and_receive.challenge(ledger, t.manifest_sha256, now()).run_id
    record = Record(
        run_id=run_id, push=order.push,
        host=host.name, address=host.address, user=host.user, port=host.port,
        identity=str(host.identity) if host.identity else None,
        ssh_config=str(order.ssh_config) if order.ssh_config else None,
        local=t.part.local, place=chosen.found.place, engine=chosen.engine,
        image=landed.identity.config if landed.identity else None, manifest_sha256=t.manifest_sha256,
        out=str(order.out.resolve()), key=str(order.key.path),
        ledger=str(order.ledger) if order.ledger else None,
        valid_seconds=order.valid_seconds, keep=order.keep, began_at=now(),
        follows=t.follows, nodes=t.nodes, python=host.python,
    )  # fmt: skip
    record.mirror.mkdir(parents=True, exist_ok=True)
    (record.mirror / "manifest.json").write_bytes(order.manifest.data)
    return t.shared.records.save(record)


def _challenge(t: Visit, record: Record) -> bytes:
    """Each start answers a nonce of its own: the last one may have been consumed."""
    with Ledger(ledger_path(t.order.ledger)) as ledger:
        return write(certify_and_receive.challenge(ledger, record.manifest_sha256, now(), record.run_id))


def _job(t: Visit, chosen: ChosenEngine, landed: Shipped, record: Record) -> run_script.Job:
    order, found, part = t.order, chosen.found, t.part
    facts = found.engines[chosen.engine].facts if chosen.engine != "none" else None
    driver = chosen.image is None or find_variant(variant_name(chosen.image.facts, "")).driver is not None
    wants = not order.on_cpu and driver and (bool(found.gpus) or order.slurm is not None)
    access = facts.gpus if facts else None
    return run_script.Job(
        record.run_id, found.place, chosen.engine, landed.runnable,
        landed.identity,
        re.sub("^~/", lambda _: f"{found.home}/", part.host.python or order.python),
        (NOBODY, NOBODY) if found.uid == 0 else (found.uid, found.gid),
        found.memory_bytes,
        (access or ("cdi" if order.slurm else None)) if wants else None,
        # A check of a node whose GPUs are gone is no check of its CPU.
        on_cpu=order.on_cpu or (not wants and chosen.engine != "none" and not order.checks),
        budget_seconds=order.budget_seconds, checks=order.checks, level=order.level, slurm=order.slurm,
        moved=order.goes_on is not None,
        together=run_script.Together(part.nodes, part.node, order.together) if order.together else None,
    )  # fmt: skip
