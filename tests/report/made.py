"""Bundles of simulated machines, in the same form and with the same signatures as those of a real run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench import __version__
from bench.base.gpu_catalogue import gpu_named
from bench.base.stamps import utc
from bench.base.strict_json import canonical_json, from_json, to_json
from bench.bundle.pack import pack
from bench.bundle.statement import Predicate, identity_of
from bench.bundle.tar_format import SIGNING, open_bundle
from bench.planning.manifest import Manifest, parse_manifest
from bench.records.fastest import fastest_with_confidence
from bench.records.floor import FloorOrReason
from bench.records.gradients import CheckOrReason
from bench.records.run_results import Results, RunFacts, samples_bytes
from bench.records.trial import (
    Ceiling,
    Crashed,
    Gpu,
    Image,
    Measured,
    Measurement,
    NodeFacts,
    Outcome,
    OutOfMemory,
    Skipped,
    StepSample,
    Trial,
)
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.text.machine_rows import machine_rows, offers
from bench.signing.ssh_keys import PublicKey
from bench.training.methods import arithmetic
from bench.training.models import counts_of
from bench.training.setting import Setting
from tests.builders import measurement, reduce_trials

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
H100 = "NVIDIA H100 80GB HBM3"
START = 1_790_000_000.0
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
STEADY = (0.99, 1.0, 1.01, 1.0, 0.99, 1.01)


def trust_list(path: Path) -> Path:
    """Write a list of trusted keys that has only KEY, by which bundles are signed unless a test says who."""
    path.write_text(PublicKey.of(KEY).line() + "\n")
    return path


def manifest(**changes: Any) -> Manifest:
    document = {"schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"], "methods": ["naive"]}
    return parse_manifest(json.dumps({**document, **changes}).encode(), "made")


def seconds(pass_seconds: float, spread: Sequence[float] = STEADY) -> list[StepSample]:
    """Make the seconds of steps of one pass and of three passes."""
    return [StepSample(n, n * pass_seconds * f) for f in spread for n in (1, 3)]


def bundle(
    path: Path,
    *,
    run_id: str = "aaaa",
    gpu: str = H100,
    gpus: int = 1,
    uuid: str = "GPU-1",
    pass_seconds: float = 0.5,
    settings: Sequence[tuple[Setting, float | Outcome]] | None = None,
    of: Manifest | None = None,
    complete: bool = True,
    watts: float | None = 400.0,
    started: float = START,
    spread: Sequence[float] = STEADY,
    packages: dict[str, str] | None = None,
    switches: dict[str, str] | None = None,
    telemetry: bytes | None = None,
    micro_batch: int = 16,
    on_one_node: int | None = None,
    version: str = __version__,
    ceiling_seconds: float = 1.0,
    floors: Mapping[Setting, FloorOrReason] = MappingProxyType({}),
    checks: Mapping[Setting, CheckOrReason] = MappingProxyType({}),
    key: Ed25519PrivateKey = KEY,
    hot: bool = False,
) -> Path:
    """Write the bundle of one run. `settings` maps a setting to the seconds of a pass or to an outcome.

    `floors` and `checks` have the floors and gradient checks of settings, or why there are none. With another
    version of bench, its operation counts differ from those of this version. Heat slows a `hot` run down.
    """
    asked = of or manifest()
    node = NodeFacts(
        "some CPU", 16, 2**37, "Linux", "6", "3.12",
        tuple(
            Gpu(i, name, f"{uuid}-{i}", memory_of(name), "9.0")
            for i, name in enumerate(gpu.split(",") if "," in gpu else [gpu] * (on_one_node or gpus))
        ),
        "580",
        packages or {"torch": "2.11.0"},
        Image("cuda13", "0" * 64, "1" * 64, asked.image) if asked.image else None,
        switches,
    )  # fmt: skip
    trials: list[tuple[Trial, str, Outcome]] = []
    for model in asked.models:
        for setting, found in [((), pass_seconds)] if settings is None else settings:
            trial = Trial(model, setting, micro_batch, gpus, asked.seed, asked.timing, asked.memory_cap_bytes)
            outcome: Outcome = found if not isinstance(found, float) else measured(found, spread, started)
            outcome = counted(trial, outcome) if version == __version__ else outcome
            outcome = of_its_own(of_the_recipe(outcome, trial.accumulation), run_id)
            trials.append((trial, " + ".join(setting) or "naive", outcome))
    precisions = dict.fromkeys(model.recipe.precision for model in asked.models)
    ceilings = tuple(
        Ceiling(f"matmul-{precision}", i, "FLOP/s", 10**13, (ceiling_seconds, 1.1 * ceiling_seconds))
        for precision in precisions
        for i in range(gpus)
    )
    by_trial = {trial.id: floors[trial.setting] for trial, _, _ in trials if trial.setting in floors}
    checked = {trial.id: checks[trial.setting] for trial, _, _ in trials if trial.setting in checks}
    reduced = reduce_trials(trials, ceilings, {}, floors=by_trial, checks=checked)
    run = RunFacts(run_id, started, started + 60, complete, None if complete else "the budget was spent")
    results = Results(
        version, asked.digest, run, node, asked.models, asked.seed, asked.timing, asked.memory_cap_bytes,
        ceilings, reduced, tuple(_left_out(asked, trials)),
    )  # fmt: skip
    files: dict[str, bytes | Path] = {
        "manifest.json": asked.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(trials),
    }
    course = telemetry if telemetry is not None else course_of(trials, gpus, watts, started, hot)
    if course:
        files["telemetry.jsonl"] = course
    predicate = Predicate(
        run_id=run_id, manifest_sha256=asked.digest.removeprefix("sha256:"),
        node=identity_of(node), complete=complete, started_at=utc(started),
        ended_at=utc(started + 60),
    )  # fmt: skip
    pack(path, files, predicate, key)
    return path


def memory_of(name: str) -> int:
    """Return 80 GiB, or less for a model that has less."""
    model = gpu_named(name)
    return min(80, math.ceil(model.memory_gib) if model else 80) * 2**30


def _left_out(asked: Manifest, trials: Sequence[tuple[Trial, str, Outcome]]) -> Iterator[Skipped]:
    """List the skipped settings: those that a test requests and does not try."""
    for request in asked.requests:
        model = request.model
        tried = {trial.setting for trial, _, _ in trials if trial.model == model}
        for entry in request.methods:
            setting = () if entry == "naive" else entry
            if isinstance(setting, tuple) and setting not in tried:
                yield Skipped(model.name, setting, " + ".join(setting) or "naive", "the test's own")


def copies(source: Path, folder: Path, count: int, own_samples: bool = True, later: float = 0.0) -> None:
    """Copy a real bundle under other run ids and GPUs, begun `later` seconds after it.

    `own_samples` also makes each copy a little slower.
    """
    files = payload(source)
    results = from_json(Results, json.loads(files["results.json"]))
    lines = [json.loads(line) for line in files["samples.jsonl"].splitlines()]
    for i in range(count):
        gpus = tuple(replace(gpu, uuid=f"GPU-{i}-{gpu.index}") for gpu in results.node.gpus)
        run = replace(results.run, id=f"{i:012x}", started_at=results.run.started_at + later)
        again = replace(results, node=replace(results.node, gpus=gpus), run=run)
        if own_samples:
            again, files["samples.jsonl"] = _slower(again, lines, 1 + 1e-6 * (i + 1))
        repacked(folder / f"{i:06}.tar", again, files)


def payload(source: Path) -> dict[str, bytes]:
    """Read the files of a bundle that its signature is about."""
    with open_bundle(source) as opened:
        return {name: opened.read(name) for name in opened.members if name not in SIGNING}


def near_copy(
    source: Path,
    path: Path,
    change: float = 0.0,
    share: float = 1.0,
    key: Ed25519PrivateKey = KEY,
    **run: Any,
) -> Path:
    """Sign another run's samples as a run of one's own, with a share of the times changed a little."""
    files = payload(source)
    results = from_json(Results, json.loads(files["results.json"]))
    lines = [json.loads(line) for line in files["samples.jsonl"].splitlines()]
    again, files["samples.jsonl"] = _slower(results, lines, 1 + change, share)
    gpus = tuple(replace(gpu, uuid=f"GPU-of-{path.stem}-{gpu.index}") for gpu in results.node.gpus)
    again = replace(again, node=replace(again.node, gpus=gpus), run=replace(again.run, id=path.stem, **run))
    return repacked(path, again, files, key)


def repacked(path: Path, results: Results, files: Mapping[str, bytes], key: Ed25519PrivateKey = KEY) -> Path:
    """Sign other results with the remaining files of a bundle."""
    run = results.run
    facts = Predicate(
        run.id, results.manifest_digest.removeprefix("sha256:"), identity_of(results.node),
        utc(run.started_at), utc(run.ended_at), run.complete,
    )  # fmt: skip
    pack(path, {**files, "results.json": results.to_bytes()}, facts, key)
    return path


def _slower(
    results: Results, lines: Sequence[Any], factor: float, share: float = 1.0
) -> tuple[Results, bytes]:
    """Multiply the seconds of a share of the steps, and summarise the trials again."""
    models = {model.name: model for model in results.models}
    main, earlier, trials = {}, {}, []
    for line in lines:
        one = from_json(Measurement, line["measurement"])
        count = round(share * len(one.steps))
        slower = tuple(replace(step, seconds=step.seconds * factor) for step in one.steps[:count])
        slow = replace(one, steps=(*slower, *one.steps[count:]))
        (earlier if line.get("earlier") else main)[line["trial"]] = Measured(slow)
    for entry in results.trials:
        trial = Trial(
            models[entry.model], entry.setting, entry.micro_batch, entry.gpus, results.seed, results.timing,
            results.memory_cap_bytes, entry.data,
        )  # fmt: skip
        trials.append((trial, entry.label, entry.failure or main[entry.id]))
    proofs = {t.id: proof for t in results.trials if (proof := t.proof or t.unproven)}
    floors = {t.id: floor for t in results.trials if (floor := t.floor or t.no_floor)}
    checks = {t.id: check for t in results.trials if (check := t.gradient_check or t.no_gradient_check)}
    reduced = reduce_trials(trials, results.ceilings, proofs, earlier, floors, checks)
    winners = tuple(fastest_with_confidence(w.model, reduced, w.undecided) for w in results.winners)
    return replace(results, trials=reduced, winners=winners), samples_bytes(trials, earlier)


def measured(pass_seconds: float, spread: Sequence[float] = STEADY, started: float = START) -> Measured:
    steps = seconds(pass_seconds, spread)
    return Measured(measurement(steps, started_at=started + 10, ended_at=started + 50, peak_bytes=2**34))


def counted(trial: Trial, outcome: Outcome) -> Outcome:
    """Set the operation count of this trial; verification accepts no other number."""
    if not isinstance(outcome, Measured):
        return outcome
    flops = arithmetic(trial.setting, trial.model, counts_of(trial.model))
    return Measured(replace(outcome.measurement, flops=flops))


def of_the_recipe(outcome: Outcome, most: int) -> Outcome:
    """Shorten steps of more passes than the recipe's, which no run times."""
    if not isinstance(outcome, Measured):
        return outcome
    steps = (
        StepSample(count, step.seconds * count / step.accumulation)
        for step in outcome.measurement.steps
        for count in [min(step.accumulation, most)]
    )
    return Measured(replace(outcome.measurement, steps=tuple(steps)))


def of_its_own(outcome: Outcome, run_id: str) -> Outcome:
    """Change the times a little, one up and one down, so that no two runs have equal times."""
    if not isinstance(outcome, Measured):
        return outcome
    little = 1e-4 * crc32(run_id.encode()) / 2**32
    steps = tuple(
        replace(step, seconds=step.seconds * (1 + (little if i // 2 % 2 else -little)))
        for i, step in enumerate(outcome.measurement.steps)
    )
    return Measured(replace(outcome.measurement, steps=steps))


def course_of(
    trials: Sequence[tuple[Trial, str, Outcome]], gpus: int, watts: float | None, at: float, hot: bool = False
) -> bytes:
    """Make telemetry with one reading per second; every trial draws the given watts on each GPU.

    None: the GPUs do not report their power.
    """
    reasons = {"throttle_reasons": 0x20} if hot else {}
    lines = []
    for trial, _, _ in trials:
        for second in range(60):
            one = {"sm_mhz": 1980.0, "celsius": 60.0, **reasons}
            if watts is not None:
                one |= {"energy_joules": watts * second, "power_watts": watts}
            lines.append({"at": at + second, "trial": trial.id, "load": 1.0, "gpus": [one] * gpus})
    return b"".join(canonical_json(to_json(line)) + b"\n" for line in lines)


NO_MEMORY = OutOfMemory("gpu", "out of it")
CRASH = Crashed("it fell over")


def texts(part: ModelPart, comparison: Comparison) -> Sequence[str]:
    """Every formatted figure of a part, to hold one output format against another."""
    ranked = [cell for row in machine_rows(part) for cell in row.values()]
    priced = [cell for row, _ in offers(part, comparison) for cell in row]
    return [cell for cell in [*ranked, *priced] if cell]
