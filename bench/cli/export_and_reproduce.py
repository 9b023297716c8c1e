"""`bench export` and `reproduce`: a verified bundle to files, or to another run here."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, VerificationFailed, nearest
from bench.bundle.stated_manifest import read_stated
from bench.bundle.tar_format import open_bundle
from bench.cli.run_and_plan import sealer, signed_text
from bench.node_check.recompute_any import results_of
from bench.planning.manifest import parse_manifest
from bench.records.fastest import fastest, runner_up
from bench.records.run_results import Results, TrialResult
from bench.records.text import interval_text
from bench.records.trial import NodeFacts, Trial
from bench.report.read_bundles import Lists, check_all

if TYPE_CHECKING:
    from bench.report.reproduce.show import Subject


def export(bundle: Path, to: str, folder: Path, model: str | None, setting: str | None, lists: Lists) -> int:
    """Verifies, chooses a trial, writes its files."""
    from bench import export as exporting

    results = _verified(bundle, lists)
    found = _choose(results, model, setting, str(bundle))
    trained = next(m for m in results.models if m.name == found.model)
    trial = Trial(
        trained, found.setting, found.micro_batch, found.gpus,
        results.seed, results.timing, results.memory_cap_bytes,
    )  # fmt: skip
    kind = next(known for known in exporting.KINDS if known == to)
    source = f"run {results.run.id} on {results.node.gpus[0].name if results.node.gpus else results.node.cpu}"
    for path in exporting.write(kind, folder, trial, found, _as_trained(bundle, results.node), source):
        print(path)
    print(f"{trial.model.name}, {found.label}: {folder / 'README.md'} says how to start it", file=sys.stderr)
    if setting is None and (doubt := runner_up(found.model, results.trials)):
        print(_doubt(found, *doubt), file=sys.stderr)
    return 0


def _as_trained(bundle: Path, node: NodeFacts) -> NodeFacts:
    """With those of its GPUs that trained: how many nodes there were follows from them."""
    with open_bundle(bundle) as opened:
        asked = read_stated(opened.read("manifest.json"))
    return replace(node, gpus=node.gpus[: asked.gpus_of(node)])


def _doubt(found: TrialResult, sure: float, other: TrialResult) -> str:
    assert other.estimate is not None
    chooses = f'; --setting "{other.label}" takes that' if other.label != found.label else ""
    return (
        f"{found.label} is {sure:.0%} sure to be within 1% of the fastest measured; {other.label} at "
        f"micro-batch {other.micro_batch}: {interval_text(other.estimate.days)} days{chooses}"
    )


def reproduce(
    bundle: Path,
    again: Path | None,
    out: Path,
    *,
    lists: Lists,
    tolerance: float,
    budget_seconds: float | None,
    key: Path | None,
    on_cpu: bool,
    any_stack: bool,
    engine: str,
    image: str | None,
    as_json: bool,
) -> int:
    """Runs a bundle's manifest here, unless `again` is that run already, and holds one against the other."""
    from bench.report.reproduce.show import read_subject, show
    from bench.report.reproduce.verdicts import reproduce as compare

    if engine != "none" and key is not None:
        raise BadInput("--key is of this machine; in the image a key is made for the run")
    there = read_subject(bundle, lists)
    ran = again is None
    if engine != "none" and again is None:
        again = _run_in_image(there, out, engine, image, budget_seconds, on_cpu, str(bundle))
    elif again is None:
        again = _run_again(there, out, budget_seconds, key, on_cpu, any_stack, str(bundle))
    here = read_subject(again, None)
    stopped = here.run.results.run.stopped if ran else None
    if here.run.results.run.id == there.run.results.run.id:
        raise BadInput("is that very run: it reproduces nothing", where=str(again))
    if here.samples_sha256 == there.samples_sha256 and there.run.losses:
        raise VerificationFailed("has that very run's samples: it was not run again", where=str(again))
    if here.manifest != there.manifest:
        raise BadInput("ran another manifest", where=str(again), advice="bench compare shows what differs")
    verdict = show(compare(here.run, there.run, tolerance), as_json=as_json)
    if stopped:
        print(f"incomplete: {stopped}", file=sys.stderr)
        return 5
    return verdict


def _run_again(
    there: Subject, out: Path, budget_seconds: float | None, key: Path | None, on_cpu: bool,
    any_stack: bool, where: str,
) -> Path:  # fmt: skip
    from bench.report.reproduce.verdicts import pip_lines, stack_differences
    from bench.runner.machine.probe import probe
    from bench.runner.run.execute import execute
    from bench.runner.run.progress import Progress

    ours, theirs = probe(gpus_too=not on_cpu), there.run.results.node
    others = list(stack_differences(ours, theirs))
    if others and not any_stack:
        known = theirs.image is not None and theirs.image.config is not None
        same = "--engine auto runs in its image" if known else " && ".join(pip_lines(ours, theirs))
        raise EnvironmentCannot(
            f"another software stack: {'; '.join(others)}",
            where=where,
            advice=f"{same or 'set what differs'}; or --any-stack to run here all the same",
        )
    manifest = parse_manifest(there.manifest, f"{where}: manifest.json")
    finished = execute(
        manifest, out, sealer(manifest, key, None), Progress(),
        resume=False, budget_seconds=budget_seconds, on_cpu=on_cpu,
    )  # fmt: skip
    print(f"bundle {finished.bundle}   {signed_text(finished.seal)}", file=sys.stderr)
    return finished.bundle


def _run_in_image(
    there: Subject, out: Path, engine: str, image: str | None, budget_seconds: float | None, on_cpu: bool,
    where: str,
) -> Path:  # fmt: skip
    """Its manifest, byte for byte, in the image that it ran in."""
    from bench.cli.image import run_in_image

    facts = there.run.results.node.image
    if facts is None or facts.config is None:
        raise BadInput("ran in no image whose identity is known", where=where, advice="leave --engine out")
    arguments = ["--device", "cpu"] if on_cpu else []
    arguments += ["--budget", f"{budget_seconds}s"] if budget_seconds else []
    before = set(out.glob("*.tar"))
    with tempfile.TemporaryDirectory(prefix="bench-reproduce-") as folder:
        manifest = Path(folder) / "manifest.json"
        manifest.write_bytes(there.manifest)
        code = run_in_image(
            "run", manifest, out, engine, image or facts.config, arguments,
            on_cpu=on_cpu, network=False, identity=facts.config,
        )  # fmt: skip
    made = set(out.glob("*.tar")) - before
    if len(made) != 1:
        raise EnvironmentCannot(f"the run in the image left no bundle: it ended with {code}", where=str(out))
    return made.pop()


def _verified(bundle: Path, lists: Lists) -> Results:
    ((_, verdict),) = check_all([bundle], lists)
    if isinstance(verdict, BenchError):
        raise verdict
    return results_of(verdict)


def _choose(results: Results, model: str | None, setting: str | None, where: str) -> TrialResult:
    """The fastest of the model, or of one of its settings by its label."""
    names = [m.name for m in results.models]
    if model is None and len(names) > 1:
        raise BadInput("holds several models", where=where, advice=f"--model: {', '.join(names)}")
    if model is not None and model not in names:
        raise BadInput(f'holds no model "{model}"', where=where, advice=nearest(model, names))
    of_model = [t for t in results.trials if t.model == (model or names[0])]
    labels = dict.fromkeys(t.label for t in of_model)
    if setting is not None and setting not in labels:
        raise BadInput(f'holds no setting "{setting}"', where=where, advice=f"allowed: {'; '.join(labels)}")
    best = fastest(t for t in of_model if setting in (None, t.label))
    if best is None:
        raise BadInput(f"has no figure for {setting or model or names[0]}", where=where)
    return best
