"""Hold the results of a bundle against its manifest.

In: the manifest as stated, the results, trials as they are read. Out: notes for the verdict, or
VerificationFailed for a contradiction. Pure.

Bundles outlive the code that made them. A value that the manifest states itself must be in the results,
whichever version wrote them. A value that bench adds (a known model's recipe, a default, the operations of a
model) must be the one that this version adds, if this version wrote the results; a difference from another
version is a note in the verdict and decides nothing. Why: docs/adr/0022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bench import __version__
from bench.base.errors import VerificationFailed
from bench.base.strict_json import from_json, to_json
from bench.bundle.stated_manifest import StatedManifest
from bench.bundle.verdict import Note
from bench.planning.manifest import resolve_models
from bench.records.trial import Proof, Timing, Trial
from bench.training.methods import arithmetic
from bench.training.models import Flops, Model, counts_of, has_formulas
from bench.training.models.model import INERT, TOKENS
from bench.training.models.own_models import CHANGED
from bench.training.models.recipes import KINDS, in_samples

if TYPE_CHECKING:
    from bench.records.run_results import Results


class ManifestCheck:
    """Results held against their manifest; VerificationFailed where they contradict it."""

    def __init__(self, manifest: StatedManifest, results: Results) -> None:
        self._manifest = manifest
        self._results = results
        self._entries = manifest.entries
        self._notes: dict[Note, None] = {}  # a set that keeps its order
        resolved, _ = resolve_models(list(manifest.models))
        self._models = {model.name: model for model in resolved}
        self._require_stated()
        self._compare_derived()

    @property
    def notes(self) -> tuple[Note, ...]:
        """The claims that this version could not check, each once, in the order in which they were found."""
        return tuple(self._notes)

    def require_flops(self, trial: Trial, flops: Flops) -> None:
        """Compare the operations of a trial's samples: utilisation and the physical limit depend on them."""
        model = trial.model.name
        if self._models.get(model) != trial.model:
            return  # _compare_derived has noted the difference
        if not has_formulas(trial.model):
            self._note(model, "its operations were counted during the run: taken on trust")
            return
        try:
            counted = arithmetic(trial.setting, trial.model, counts_of(trial.model))
        except LookupError as error:
            self._note(model, f"{error}: its operations are taken on trust")
            return
        if counted != flops:
            setting = " + ".join(trial.setting) or "naive"
            kind = next(f.name for f in fields(flops) if getattr(flops, f.name) != getattr(counted, f.name))
            theirs, ours = getattr(flops, kind), getattr(counted, kind)
            words = f"a sample costs {theirs} operations of {kind} with {setting}; this bench counts {ours}"
            self._differs(model, words)

    def require_trial(self, trial: Trial) -> None:
        """Refuse a trial with another batch, number of GPUs or micro-batch than the manifest has."""
        if trial.accumulation * trial.gpus * trial.micro_batch != trial.model.recipe.batch_size:
            raise VerificationFailed(f"trial {trial.id} does not train the recipe's batch")
        installed = len(self._results.node.gpus)
        gpus_per_node = self._manifest.gpus or installed or 1
        if trial.gpus % gpus_per_node:  # a multiple is right: several nodes may train together
            raise VerificationFailed(
                f"trial {trial.id} is on {trial.gpus} GPUs, the manifest asks for {gpus_per_node}"
            )
        if installed and not 1 <= gpus_per_node <= installed:
            raise VerificationFailed(f"the manifest asks for {gpus_per_node} GPUs, the node has {installed}")
        stated = self._manifest.micro_batch_of(trial.model.name)
        if stated not in ("auto", trial.micro_batch):
            raise VerificationFailed(
                f"trial {trial.id} has the micro-batch {trial.micro_batch}, the manifest says {stated}"
            )

        if trial.data != (folder := self._manifest.data_of(trial.model.name)):
            read, says = (place or "made-up data" for place in (trial.data, folder))
            raise VerificationFailed(f"trial {trial.id} read {read}, the manifest says {says}")

    def require_proof(self, trial: Trial, proof: Proof) -> None:
        """Refuse a proof that the manifest does not ask for, or that is shorter than it asks."""
        asked = self._manifest.prove
        if asked is None:
            raise VerificationFailed(f"trial {trial.id} has a proof, and the manifest asks for none")
        stated = asked if isinstance(asked, dict) else {}
        steps, minutes = (
            least if isinstance(least := stated.get(name), (int, float)) else 0
            for name in ("steps", "minutes")
        )
        if proof.steps < steps or proof.seconds < 60 * minutes:
            raise VerificationFailed(
                f"the proof of trial {trial.id} is {proof.steps:,} steps in {proof.seconds:,.0f} s; "
                f"the manifest asks for {steps:,} steps and {minutes:g} minutes"
            )

    def require_all_tried(self) -> None:
        """Refuse a complete run in which a setting that the manifest lists was neither tried nor skipped."""
        results = self._results
        if not results.run.complete:
            return
        for model in results.models:
            tried = {frozenset(trial.setting) for trial in results.trials_of(model.name)}
            tried |= {frozenset(skip.setting) for skip in results.skipped if skip.model == model.name}
            if missing := _listed(self._manifest.methods_of(model.name)) - tried:
                setting = " + ".join(sorted(min(missing, key=sorted))) or "naive"
                raise VerificationFailed(
                    f"is marked complete, but {setting} of {model.name} was neither tried nor skipped"
                )
            if not tried:
                raise VerificationFailed(f"is marked complete, but nothing of {model.name} was tried")

    def _require_stated(self) -> None:
        manifest, results = self._manifest, self._results
        names = [model.name for model in results.models]
        if names != list(self._entries):
            raise VerificationFailed(
                f"the results are of {', '.join(names)}, the manifest names {', '.join(self._entries)}"
            )
        for name, stated, actual in (
            ("seed", manifest.seed, results.seed),
            ("memory cap", manifest.memory_cap_bytes, results.memory_cap_bytes),
            ("timing", manifest.timing, to_json(results.timing)),
            *_stated_of_models(self._entries, results.models),
        ):
            if place := _contradiction(stated, actual, name):
                raise VerificationFailed(f"the manifest states another {place} than the results have")

    def _compare_derived(self) -> None:
        results = self._results
        if from_json(Timing, to_json(self._manifest.timing)) != results.timing:
            self._differs(None, "its timing is not what this bench makes of the manifest")
        for model in results.models:
            ours = self._models.get(model.name)
            if ours is None:
                self._note(model.name, "this bench cannot build it from the manifest: taken on trust")
            elif ours != model:
                place = _contradiction(to_json(ours), to_json(model), "model") or "architecture"
                self._differs(model.name, f"its {place} is not what this bench makes of the manifest")

    def _differs(self, model: str | None, text: str) -> None:
        version = self._results.bench_version
        if version == __version__:
            raise VerificationFailed(str(Note(model, text)))
        self._note(model, f"{text}; it is by bench {version!r:.20}: taken on trust")

    def _note(self, model: str | None, text: str) -> None:
        self._notes[Note(model, text)] = None


def _listed(methods: Any) -> set[frozenset[str]]:
    """Select the settings that a manifest lists by their methods.

    Names such as "free-lunch" are left out, because the methods that they stand for differ by version.
    """
    entries = [methods] if isinstance(methods, str) else methods if isinstance(methods, list) else []
    listed = {frozenset(map(str, entry)) for entry in entries if isinstance(entry, list)}
    return listed | {frozenset[str]() for entry in entries if entry == "naive"}


def _stated_of_models(
    entries: Mapping[str, Mapping[str, Any]], models: tuple[Model, ...]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, stated, actual) for each model's recipe and architecture."""
    for model in models:
        entry = entries[model.name]
        recipe, architecture = entry.get("recipe", {}), entry.get("architecture", {})
        if isinstance(recipe, dict):
            named = {key: {"name": name} for key in KINDS if isinstance(name := recipe.get(key), str)}
            recipe = recipe | named
        ours = to_json(model.recipe)
        if isinstance(recipe, dict):
            recipe, _ = in_samples(recipe, ours, "")
            if "architecture" in entry:  # nothing else could say that weights are frozen
                recipe.setdefault("lora", None)
            if str(ours["source"]).startswith(f"{recipe.get('source')}{CHANGED}"):
                ours["source"] = recipe["source"]
        yield f"{model.name}/recipe", recipe, ours
        if isinstance(architecture, dict):
            actual = {"model_type": model.family, **model.architecture}
            left_out = (INERT | TOKENS) - actual.keys()  # fields that change nothing, so models drop them
            stated = {key: value for key, value in architecture.items() if key not in left_out}
            yield f"{model.name}/architecture", stated, actual


def _contradiction(stated: Any, actual: Any, place: str) -> str | None:
    """Find the first place where a stated value is not the actual one; None if there is no such place."""
    if isinstance(stated, dict) and isinstance(actual, dict):
        parts = (_contradiction(value, actual.get(key), f"{place}/{key}") for key, value in stated.items())
        return next(filter(None, parts), None)
    return None if stated == actual else place
