"""`bench run` and `plan`: from arguments to what a person or a program reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from bench.base.errors import BadInput, EnvironmentCannot, printable
from bench.base.gpu_catalogue import find_gpu_model, gpu_models
from bench.base.paths import making_folders
from bench.base.strict_json import pretty_json, to_json
from bench.cli.arguments import is_host_and_port
from bench.node_check.recompute_any import AnyVerdict, results_of
from bench.planning.manifest import Manifest, load_manifest
from bench.planning.plan import Plan, SettingPlan, make_plan, target_of
from bench.records.fastest import without_figures
from bench.records.slowdown import Slowed
from bench.records.text import batch_text, bytes_text, figures
from bench.report.text.run_table import results_table
from bench.training.methods import Target
from bench.training.models import known_models
from bench.training.models.dry_build import rehearse

if TYPE_CHECKING:
    from bench.records.run_results import Results
    from bench.runner.processes.jobs import Nodes
    from bench.runner.run.execute import FinishedRun
    from bench.runner.run.seal import Seal, Sealer


Place = tuple[int, int, str | None]  # nodes, which of them this is, where they meet


def run(
    path: Path,
    out: Path,
    *,
    budget_seconds: float | None,
    key: Path | None,
    challenge: Path | None,
    resume: bool,
    as_json: bool,
    on_cpu: bool,
    place: Place,
    moved: bool = False,
) -> int:
    from bench.runner.run.earlier_bundle import answered
    from bench.runner.run.execute import Unpacked, execute
    from bench.runner.run.progress import Progress

    manifest = load_manifest(path)
    nodes = _nodes(manifest, place)
    sealing = sealer(manifest, key, challenge)
    # Where there are several nodes, the others have yet to hear that it is over.
    if resume and sealing.run_id and nodes is None:
        bundle = out / f"{sealing.run_id}.tar"
        with making_folders(out):
            before = answered(bundle, sealing.nonce)
        if before is not None:
            return _finished_before(bundle, before, as_json)
    counted = rehearse(manifest.models, str(path))
    try:
        finished = execute(
            manifest,
            out,
            sealing,
            Progress(),
            resume=resume,
            budget_seconds=budget_seconds,
            on_cpu=on_cpu,
            nodes=nodes,
            moved=moved,
            counted=counted,
        )
    except Unpacked as error:
        if not as_json:
            print(results_table(error.results))
        raise
    _show(finished.results, finished.bundle, finished.slowed, as_json)
    return _ending(finished, challenged=challenge is not None)


def _ending(finished: FinishedRun, *, challenged: bool) -> int:
    """What is left to do, and the exit code."""
    if finished.kept:
        print(f"bundle {finished.bundle} is a certified one, and was left as it is", file=sys.stderr)
    else:
        print(f"bundle {finished.bundle}   {signed_text(finished.seal)}", file=sys.stderr)
    if finished.results.run.stopped:
        print(f"incomplete: {finished.results.run.stopped}\n  --resume goes on with it", file=sys.stderr)
        return 5
    if challenged and finished.seal.certificate is None:
        level = "" if finished.kept else ": the bundle's level is self"
        print(f"no certificate came{level}", file=sys.stderr)
        print("  the same command with --resume measures nothing again, and asks anew", file=sys.stderr)
        return 5
    if finished.kept:
        print("  what was measured is in the journal: --challenge FILE --resume signs it", file=sys.stderr)
        return 5
    return _answers(finished.results)


def _answers(results: Results) -> int:
    """A run whose trials all failed has measured nothing, whatever its bundle says of them."""
    return EnvironmentCannot.exit_code if len(without_figures(results)) == len(results.models) else 0


def _show(results: Results, bundle: Path, slowed: Mapping[str, Slowed], as_json: bool) -> None:
    if as_json:
        document = {"bundle": str(bundle), "results": to_json(results), "slowed": to_json(slowed)}
        sys.stdout.write(pretty_json(document).decode())
    else:
        print(results_table(results, slowed))
    for model, reason in without_figures(results).items():
        print(printable(f"no figure for {model}: {reason}"), file=sys.stderr)


def _finished_before(bundle: Path, verdict: AnyVerdict, as_json: bool) -> int:
    """There is nothing to measure, and nothing to sign."""
    _show(results_of(verdict), bundle, verdict.contents.slowed, as_json)
    then = "received" if verdict.received_at else "bench receive countersigns it"
    print(f"bundle {bundle}   certified by {verdict.certified_by}, {then}", file=sys.stderr)
    print("this run was finished before: nothing was measured, nothing written", file=sys.stderr)
    return _answers(results_of(verdict))


def sealer(manifest: Manifest, key: Path | None, challenge: Path | None) -> Sealer:
    from bench.runner.run.seal import CertifiedKey, OwnKey, read_challenge
    from bench.signing.key_file import load_or_make_key

    if challenge is not None:
        return CertifiedKey(read_challenge(challenge), manifest.digest)
    signer = load_or_make_key(key)
    if signer.made:
        print(f"made a key to sign with: {signer.path}", file=sys.stderr)
    return OwnKey(signer.private)


def signed_text(seal: Seal) -> str:
    from bench.signing.ssh_keys import PublicKey

    if seal.certificate is None:
        return f"signed by {PublicKey.of(seal.key).fingerprint}"
    return f"signed by a key that {seal.certificate.authority.fingerprint} certified for this run"


def follow(path: Path, on_cpu: bool, place: Place) -> int:
    """A node that does not lead: it measures what the leader says, and the leader has the bundle."""
    from bench.runner.run import execute as running
    from bench.runner.run.progress import Progress

    manifest = load_manifest(path)
    nodes = _nodes(manifest, place)
    if nodes is None:
        raise BadInput(f"--node {place[1]} of a single node", advice="--nodes says how many there are")
    running.follow(manifest, nodes, Progress(), on_cpu=on_cpu)
    return 0


def _nodes(manifest: Manifest, place: Place) -> Nodes | None:
    from bench.runner.processes.jobs import Nodes

    count, node, meet = place
    if count == 1 and node == 0:
        return None
    if count < 1 or not 0 <= node < count:
        raise BadInput(f"--node {node} of --nodes {count}", advice="nodes are counted from 0")
    if meet is None or not is_host_and_port(meet):
        raise BadInput(f"--meet {meet}: no HOST:PORT", advice="a port of node 0 that all nodes reach")
    return Nodes(count, node, meet, manifest.digest.removeprefix("sha256:")[:12])


def list_models(as_json: bool) -> int:
    models = list(known_models().values())
    if as_json:
        sys.stdout.write(pretty_json([to_json(m) for m in models]).decode())
        return 0
    rows = [
        (
            m.name,
            m.family,
            f"{m.recipe.batch_size:,}",
            f"{m.recipe.steps:,}",
            m.recipe.precision,
            m.recipe.source,
        )
        for m in models
    ]
    print(
        tabulate(
            rows, ("model", "family", "batch", "steps", "precision", "source"), maxcolwidths=[None] * 5 + [60]
        )
    )
    return 0


def plan(path: Path | None, gpus: int | None, gpu: str | None, as_json: bool) -> int:
    if path is None:
        raise BadInput("plan needs a manifest", advice="bench plan MANIFEST, or bench plan --list-models")
    manifest = load_manifest(path)
    counted = rehearse(manifest.models, str(path))
    made = make_plan(manifest, _target(manifest.gpus if gpus is None else gpus, gpu), counted)
    if as_json:
        sys.stdout.write(pretty_json(_plan_json(made)).decode())
    else:
        print(_plan_text(made))
    return 0


def _target(gpus: int | None, gpu: str | None) -> Target:
    """The machine that is asked about: this one, or one by name."""
    if gpus is not None and gpus < 1:
        raise BadInput(f"--gpus {gpus} is not at least 1")
    if gpu is not None:
        model = find_gpu_model(gpu)
        if model is None:
            names = ", ".join(known.name for known in gpu_models())
            raise BadInput(
                f"no GPU like {gpu!r} is known",
                advice=f"known: {names}; of any other, bench plan where it is",
            )
        memory = int(model.memory_gib * 2**30)
        return Target("cuda", gpus or 1, memory, model.name, model.compute_capability, elsewhere=True)
    from bench.runner.machine.probe import probe

    node = probe()
    if gpus is not None and not node.gpus and gpus > 1:
        raise BadInput(
            f"this machine has no GPU: name the kind that {gpus} are planned of", advice="--gpu NAME"
        )
    return target_of(node, gpus)


def _plan_json(made: Plan) -> object:
    cells = [
        {
            "model": cell.model.name,
            "setting": list(cell.setting),
            "label": cell.label,
            "trials": [
                {"id": t.id, "micro_batch": t.micro_batch, "accumulation": t.accumulation}
                for t in cell.trials
            ],
            "predicted_bytes": cell.predicted_bytes,
            "least_bytes": cell.least_bytes,
            "host_bytes": cell.host_bytes,
            "floor_days": cell.floor_days,
        }
        for cell in made.cells
    ]
    return {
        "schema": "bench/plan/v1",
        "manifest": made.manifest_digest,
        "target": to_json(made.target),
        "cells": cells,
        "skipped": to_json(made.skipped),
        "searched": sorted(made.guided),
    }


def _memory_text(cell: SettingPlan, there: int) -> str:
    if cell.predicted_bytes is not None:
        # Tried all the same, with the fewest samples: a prediction may be wrong.
        hardly = "hardly fits: " if cell.predicted_bytes > there else ""
        return hardly + bytes_text(cell.predicted_bytes)
    return "when it runs" if cell.least_bytes is None else f"over {bytes_text(cell.least_bytes)}"


def _of_the_host(made: Plan) -> Iterator[str]:
    """What offloading takes of a machine elsewhere: whoever rents or buys it has to ask for that."""
    if made.target.host_bytes is not None:
        return  # what is too much is skipped
    for model in dict.fromkeys(cell.model.name for cell in made.cells):
        needs = sorted({c.host_bytes for c in made.cells if c.model.name == model and c.host_bytes})
        if needs:
            least, most = (f"{need / 2**30:.0f}" for need in (needs[0], needs[-1]))
            between = least if least == most else f"{least} to {most}"
            yield f"offload  {model}: about {between} GiB of the host's memory, which is not known here"


def _plan_text(made: Plan) -> str:
    rows = [
        (
            cell.model.name,
            cell.label,
            batch_text(cell.trials[0].micro_batch, cell.trials[0].accumulation, made.target.gpus),
            _memory_text(cell, made.memory_bytes),
            "-" if cell.floor_days is None else figures(cell.floor_days),
            cell.trials[0].id,
        )
        for cell in made.cells
    ]
    target = made.target
    device = f"{target.gpus} x {target.name}, {bytes_text(target.memory_bytes)} each"
    if made.memory_bytes < target.memory_bytes:
        device += f", capped at {bytes_text(made.memory_bytes)}"
    at_most = " at most (a search measures those that may be the fastest)" if made.guided else ""
    headers = ("model", "setting", "batch", "predicted memory", "days at least", "first trial")
    skipped = [f"skipped  {s.model}  {s.label}: {s.reason}" for s in made.skipped]
    table = tabulate(
        rows, headers, disable_numparse=True, colalign=("left", "left", "right", "right", "right", "left")
    )
    return "\n".join(
        [
            f"{device}   {len(made.cells)} settings to measure{at_most}, {len(made.skipped)} skipped",
            "",
            table,
            *_of_the_host(made),
            *skipped,
        ]
    )
