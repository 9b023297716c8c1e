"""Train every architecture of transformers that has a class for one of bench's objectives, made small.

    PYTHONPATH=. python benchmarks/architectures.py [TYPE...] > docs/models.md

Each architecture is planned as a manifest's own model and trained two steps on the CPU, in a process of its
own, within limits of time and memory. What does not train is listed with the reason. What trains is then
measured by `bench run`, and `bench verify` judges the bundles. Takes an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.small_architectures import made_small, sample_sizes

if TYPE_CHECKING:
    from bench.base.errors import Mistake
    from bench.training.models.model import Model

Pair = tuple[str, str]  # a type of transformers and an objective of bench
CPU_SECONDS, SECONDS, BYTES = 120, 900, 12 * 2**30  # of one architecture, at most
WORKERS = 2
IN_BUNDLE = 48  # architectures that one `bench run` measures
RECIPE = {"batch_size": 2, "steps": 10, "precision": "fp32"}
TIMING = {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1}
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "transformers", "bench.training.models.dry_build", "bench.runner.trial.run_trial"]


def named(pair: Pair) -> str:
    """Return the name of a pair's model in a manifest."""
    return "-".join(pair).replace("_", "-")


def described(model_type: str, objective: str) -> dict[str, Any]:
    """Return a manifest's own model: a small architecture of this type with a recipe of this objective."""
    return {
        "name": named((model_type, objective)),
        "architecture": made_small(model_type, objective),
        "recipe": {**RECIPE, "objective": objective, **sample_sizes(model_type, objective)},
    }


def planned(model_type: str, objective: str) -> tuple[Sequence[Model], Sequence[Mistake]]:
    """Resolve and build a small architecture as a plan does; return its model, and what bench refuses."""
    from bench.planning.manifest import resolve_models
    from bench.training.models import families
    from bench.training.models.dry_build import dry_build

    models, mistakes = resolve_models([described(model_type, objective)])
    if models and models[0].family not in families():
        mistakes += dry_build(models[0], "/models/0").mistakes
    return models, mistakes


def train(model_type: str, objective: str) -> str:
    """Plan and train an architecture; return the reason why that failed, or an empty text."""
    from bench.records.trial import Timing, Trial
    from bench.runner.trial.device import Device
    from bench.runner.trial.run_trial import TrialRun
    from bench.runner.trial.team import Team

    models, mistakes = planned(model_type, objective)
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
    """Send the reason why a pair does not train, from a separate process that has limits."""
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
    """Return the pairs of a model type and an objective that transformers has; `chosen` limits the types."""
    from transformers import CONFIG_MAPPING

    from bench.training.models.generic import kinds

    found = []
    for model_type in chosen or sorted(CONFIG_MAPPING):
        for objective, kind in kinds().items():
            if CONFIG_MAPPING[model_type] in kind._model_mapping:
                found.append((model_type, str(objective)))
    return found


def verified(chosen: Sequence[Pair]) -> list[str]:
    """Measure pairs by `bench run`; return the models that were measured in a bundle that verifies."""
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
        subprocess.run(command, stdout=sys.stderr, check=False)
        for path in out.glob("*.tar"):
            if subprocess.run([*bench, "verify", str(path)], stdout=sys.stderr, check=False).returncode == 0:
                with tarfile.open(path) as bundle:
                    results = json.load(bundle.extractfile("results.json"))  # type: ignore[arg-type]
                return [trial["model"] for trial in results["trials"] if trial["estimate"]]
    return []


def main() -> None:
    """Train every pair for two steps and print docs/models.md."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="a model type; default: all of transformers")
    types = parser.parse_args().types
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    CONTEXT.set_forkserver_preload(PRELOADED)
    every = pairs(types)
    with ThreadPoolExecutor(WORKERS) as workers:
        reasons = dict(zip(every, workers.map(outcome, every), strict=True))
    trained = [pair for pair, reason in reasons.items() if not reason]
    parts = [trained[i : i + IN_BUNDLE] for i in range(0, len(trained), IN_BUNDLE)]
    print(page(reasons, {name for part in parts for name in verified(part)}, len(parts)))


def page(reasons: Mapping[Pair, str], measured: Set[str], bundles: int) -> str:
    """Return docs/models.md: what trains, what does not and why, and what of it was measured."""
    import transformers

    trained = [pair for pair, reason in reasons.items() if not reason]
    unmeasured = [name for name in map(named, trained) if name not in measured]
    without = f"Not measured: {', '.join(f'`{name}`' for name in unmeasured) or 'none'}."
    types, names = {name for name, _ in reasons}, {name for name, _ in trained}
    lines = [
        "# Architectures",
        "",
        "This page is for people with a model of their own: it says which architectures of transformers "
        "train, and what the others lack. "
        f"Made by `benchmarks/architectures.py` with transformers {transformers.__version__}. Every type "
        "that has a class for one of bench's objectives was made small by rules for the names of its fields, "
        "planned as a manifest's own model without a prediction of its memory, and trained two steps on a "
        "CPU.",
        "",
        f"{len(names)} of {len(types)} types train, and {len(trained)} of {len(reasons)} pairs of type and "
        "objective. The tables say what the others lack.",
        "",
        f"Of these pairs, {len(measured)} were measured by `bench run --device cpu`, two passes a step and a "
        f"tenth of a second each, in {bundles} bundle{'s' * (bundles > 1)} that `bench verify` accepts. "
        f"{without}",
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
