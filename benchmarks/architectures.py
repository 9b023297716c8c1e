"""Train every architecture of transformers that has a class for one of bench's objectives, made small.

    PYTHONPATH=. python benchmarks/architectures.py [TYPE...] > docs/models.md

Each architecture is planned as a manifest's own model and trained two steps on the CPU, in a process of its
own, within limits of time and memory. What does not train is listed with the reason. Some of those that
train are then measured by `bench run`, and `bench verify` judges the bundle. Takes a quarter of an hour on
two cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.small_architectures import made_small, sample_sizes

Pair = tuple[str, str]  # a type of transformers and an objective of bench
CPU_SECONDS, SECONDS, BYTES = 120, 900, 12 * 2**30  # of one architecture, at most
WORKERS = 2
IN_BUNDLE = 24  # architectures that are measured and verified
RECIPE = {"batch_size": 2, "steps": 10, "precision": "fp32"}
TIMING = {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1}
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "transformers", "bench.training.models.dry_build", "bench.runner.trial.run_trial"]


def described(model_type: str, objective: str) -> dict[str, Any]:
    """Return a manifest's own model: a small architecture of this type with a recipe of this objective."""
    return {
        "name": f"{model_type}-{objective}".replace("_", "-"),
        "architecture": made_small(model_type, objective),
        "recipe": {**RECIPE, "objective": objective, **sample_sizes(model_type, objective)},
    }


def train(model_type: str, objective: str) -> str:
    """Plan and train an architecture; return the reason why that failed, or an empty text."""
    from bench.planning.manifest import resolve_models
    from bench.records.trial import Timing, Trial
    from bench.runner.trial.device import Device
    from bench.runner.trial.run_trial import TrialRun
    from bench.runner.trial.team import Team
    from bench.training.models import families
    from bench.training.models.dry_build import dry_build

    models, mistakes = resolve_models([described(model_type, objective)])
    if models and models[0].family not in families():
        mistakes += dry_build(models[0], "/models/0").mistakes
    if mistakes:
        place, first = mistakes[0].path.removeprefix("/models/0/"), mistakes[0]
        return f"{place}: {first.found}" + f"; {first.allowed}" * place.startswith("recipe")
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(models[0], (), 2, 1, 0, Timing())
        run = TrialRun(trial, Device("cpu"), Team(), Path(scratch), lambda _event: None)
        run.prepare()
        losses = [float(run.step(1)) for _ in range(2)]
    return "" if all(abs(loss) < 1e6 for loss in losses) else f"its losses are {losses}"


def train_one(pair: Pair, answer: Connection) -> None:
    """Send the reason why a pair does not train, from a process of its own that has limits."""
    import torch

    from bench.training.models import counted_memory

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.alarm(SECONDS)
    torch.set_num_threads(1)
    counted_memory.MOST_SECONDS = 0  # predicting the memory would take most of the time
    try:
        reason = train(*pair)
    except Exception as error:  # an architecture's code may raise anything
        reason = f"{type(error).__name__}: {error}"
    answer.send(" ".join(reason.split())[:300])


def outcome(pair: Pair) -> str:
    """Return the reason why a pair of type and objective does not train; empty if it trains."""
    received, answer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=train_one, args=(pair, answer))
    process.start()
    answer.close()
    try:
        reason = str(received.recv())
    except EOFError:
        reason = ""
    process.join()
    if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return f"takes more than {CPU_SECONDS} s of a core"
    return f"its process ended with {process.exitcode}" if process.exitcode else reason


def pairs(chosen: Sequence[str]) -> list[Pair]:
    from transformers import CONFIG_MAPPING

    from bench.training.models.generic import kinds

    found = []
    for model_type in chosen or sorted(CONFIG_MAPPING):
        for objective, kind in kinds().items():
            if CONFIG_MAPPING[model_type] in kind._model_mapping:
                found.append((model_type, str(objective)))
    return found


def some(trained: Sequence[Pair]) -> list[Pair]:
    """Choose pairs to be measured, spread evenly over objectives and types."""
    ordered = sorted(trained, key=lambda pair: pair[::-1])
    step = max(1, len(ordered) // IN_BUNDLE)
    return ordered[::step][:IN_BUNDLE]


def verified(chosen: Sequence[Pair]) -> str:
    """Measure pairs by `bench run`, and say what `bench verify` says about the bundle."""
    manifest = {
        "schema": "bench/manifest/v1",
        "name": "architectures",
        "models": [described(*pair) for pair in chosen],
        "methods": ["naive"],
        "micro_batch": 1,
        "timing": TIMING,
    }
    bench = [sys.executable, "-m", "bench"]
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "manifest.json"), Path(folder, "out")
        file.write_text(json.dumps(manifest))
        command = [*bench, "run", str(file), "--device", "cpu", "-o", str(out)]
        run = subprocess.run(command, stdout=sys.stderr, check=False)
        bundles = [*out.glob("*.tar")]
        if not bundles:
            return f"`bench run` of {len(chosen)} of them ended with {run.returncode}, without a bundle."
        with tarfile.open(bundles[0]) as bundle:
            results = json.load(bundle.extractfile("results.json"))  # type: ignore[arg-type]
        verdict = subprocess.run([*bench, "verify", str(bundles[0])], stdout=sys.stderr, check=False)
    measured = [trial["model"] for trial in results["trials"] if trial["estimate"]]
    accepted = "accepted" if verdict.returncode == 0 else "refused"
    names = ", ".join(f"`{name}`" for name in measured)
    return (
        f"Of these, {len(chosen)} were planned and measured by one `bench run --device cpu`, with two passes "
        f"a step and a tenth of a second of measuring each: {len(measured)} of them were measured, and "
        f"`bench verify` {accepted} the bundle. Measured: {names}."
    )


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    CONTEXT.set_forkserver_preload(PRELOADED)
    every = pairs(sys.argv[1:])
    with ThreadPoolExecutor(WORKERS) as workers:
        reasons = dict(zip(every, workers.map(outcome, every), strict=True))
    trained = [pair for pair, reason in reasons.items() if not reason]
    print(page(reasons, verified(some(trained)) if trained else "None was measured."))


def page(reasons: Mapping[Pair, str], verdict: str) -> str:
    import transformers

    trained = [pair for pair, reason in reasons.items() if not reason]
    types, names = {name for name, _ in reasons}, {name for name, _ in trained}
    lines = [
        "# Architectures",
        "",
        f"Made by `benchmarks/architectures.py` with transformers {transformers.__version__}. Every type "
        "that has a class for one of bench's objectives was made small by rules for the names of its fields, "
        "planned as a manifest's own model without a prediction of its memory, and trained two steps on a "
        "CPU.",
        "",
        f"{len(names)} of {len(types)} types train, and {len(trained)} of {len(reasons)} pairs of type and "
        "objective. The tables say what the others lack.",
        "",
        verdict,
        "",
    ]
    for objective in dict.fromkeys(objective for _, objective in reasons):
        names_of = ", ".join(f"`{name}`" for name, of in trained if of == objective)
        lines += [f"## {objective}", "", f"Train: {names_of or 'none'}.", ""]
        others = [(name, reason) for (name, of), reason in reasons.items() if of == objective and reason]
        if others:
            lines += ["| does not train | why |", "|---|---|"]
            lines += [f"| `{name}` | {reason.replace('|', '/')} |" for name, reason in others]
            lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    main()
