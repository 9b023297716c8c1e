"""What a manifest decides of its results, and where they contradict it.

Bundles outlive the code that made them. What a manifest states itself holds, whoever wrote the results. What
bench adds (a known model's recipe, a default, the operations that a model costs) must be what this bench
adds if the results are by this version of it; of another version's the difference is told, and decides
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from bench import __version__
from bench.base.errors import VerificationFailed
from bench.base.strict_json import DecodeError, from_json, strict_loads, to_json
from bench.bundle.verdict import Note
from bench.planning.manifest import resolve_models
from bench.records.trial import Image, NodeFacts, Timing, Trial
from bench.training.methods import arithmetic
from bench.training.models import Flops, Model, families, family_of
from bench.training.models.own_models import INERT, TOKENS

if TYPE_CHECKING:
    from bench.records.run_results import Results


@dataclass(frozen=True, slots=True)
class StatedManifest:
    """The part of a manifest that results can contradict."""

    models: tuple[Any, ...]
    gpus: int | None = None
    micro_batch: int | str = "auto"
    memory_cap_gib: float | None = None
    seed: int = 0
    timing: Mapping[str, Any] = field(default_factory=dict)  # as stated: without defaults
    methods: Any = "guided"

    @property
    def memory_cap_bytes(self) -> int | None:
        return None if self.memory_cap_gib is None else int(self.memory_cap_gib * 2**30)

    @property
    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """What is stated of each model, by name."""
        named = [entry if isinstance(entry, dict) else {"name": entry} for entry in self.models]
        return {str(entry.get("name")): entry for entry in named}

    def gpus_of(self, node: NodeFacts) -> int:
        """How many of its GPUs a node trains with: all, unless less of each is asked for."""
        there = len(node.gpus)
        return self.gpus if self.gpus and 0 < self.gpus < there else there


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise VerificationFailed(f"is no manifest: {error}", where="manifest.json") from None


def _document(manifest: bytes) -> Mapping[str, Any]:
    document = strict_loads(manifest)
    if not isinstance(document, dict):
        raise DecodeError("expected an object")
    return document


def read_stated(manifest: bytes) -> StatedManifest:
    """Without the schema, which is this version's: a method of another one does not matter here."""
    known = {field.name for field in fields(StatedManifest)}
    with _refusals():
        return from_json(
            StatedManifest, {key: value for key, value in _document(manifest).items() if key in known}
        )


def check_image(manifest: bytes, image: Image | None) -> None:
    """A manifest that names its image has no results from anywhere else."""
    with _refusals():
        wanted = _document(manifest).get("image")
    found = image.config if image else None
    if wanted not in (None, found):
        raise VerificationFailed(f"ran in {found or 'no known image'}, the manifest asks for {wanted}")


class ManifestCheck:
    """Results held against their manifest; VerificationFailed where they contradict it."""

    def __init__(self, manifest: bytes, results: Results) -> None:
        self._asked = read_stated(manifest)
        self._results = results
        self._entries = self._asked.entries
        self._notes: dict[Note, None] = {}
        resolved, _ = resolve_models(list(self._asked.models))
        self._models = {model.name: model for model in resolved}
        self._require_stated()
        self._compare_derived()

    @property
    def gpus(self) -> int:
        """That trained, of each node."""
        return self._asked.gpus_of(self._results.node)

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(self._notes)

    def require_flops(self, trial: Trial, found: Flops) -> None:
        """The operations that utilisation and the physical limit follow from."""
        model = trial.model.name
        if self._models.get(model) != trial.model:
            return  # said already
        if trial.model.family not in families():
            self._note(model, "its operations were counted as it ran: taken on trust")
            return
        try:
            counted = arithmetic(
                trial.setting, trial.model, family_of(trial.model).forward_flops(trial.model)
            )
        except LookupError as error:
            self._note(model, f"its operations with the method {error}, not known here: taken on trust")
            return
        if counted != found:
            told = f"a sample costs {found.total} operations with {' + '.join(trial.setting) or 'naive'}"
            self._differs(model, f"{told}; this bench counts {counted.total}")

    def require_trial(self, trial: Trial) -> None:
        asked, entry = self._asked, self._entries[trial.model.name]
        if trial.accumulation * trial.gpus * trial.micro_batch != trial.model.recipe.batch_size:
            raise VerificationFailed(f"trial {trial.id} does not train the recipe's batch")
        each = asked.gpus or len(self._results.node.gpus) or 1
        if trial.gpus % each:  # more of them: of several nodes that train together
            raise VerificationFailed(
                f"trial {trial.id} is on {trial.gpus} GPUs, the manifest asks for {each}"
            )
        wanted = entry.get("micro_batch", asked.micro_batch)
        if wanted not in ("auto", trial.micro_batch):
            raise VerificationFailed(
                f"trial {trial.id} has the micro-batch {trial.micro_batch}, the manifest says {wanted}"
            )

    def require_all_tried(self) -> None:
        """A run that says it is complete tried, or skipped, every setting that its manifest lists."""
        results = self._results
        if not results.run.complete:
            return
        for model in results.models:
            tried = {frozenset(trial.setting) for trial in results.trials if trial.model == model.name}
            tried |= {frozenset(skip.setting) for skip in results.skipped if skip.model == model.name}
            if missing := _listed(self._entries[model.name].get("methods", self._asked.methods)) - tried:
                told = " + ".join(sorted(min(missing, key=sorted))) or "naive"
                message = f"is said to be complete, and {told} of {model.name} was neither tried nor skipped"
                raise VerificationFailed(message)
            if not tried:
                raise VerificationFailed(f"is said to be complete, and nothing of {model.name} was tried")

    def _require_stated(self) -> None:
        asked, results = self._asked, self._results
        names = [model.name for model in results.models]
        if names != list(self._entries):
            raise VerificationFailed(
                f"the results are of {', '.join(names)}, the manifest names {', '.join(self._entries)}"
            )
        for name, stated, found in (
            ("seed", asked.seed, results.seed),
            ("memory cap", asked.memory_cap_bytes, results.memory_cap_bytes),
            ("timing", asked.timing, to_json(results.timing)),
            *_stated_of_models(self._entries, results.models),
        ):
            if place := _contradiction(stated, found, name):
                raise VerificationFailed(f"the manifest states another {place} than the results have")

    def _compare_derived(self) -> None:
        results = self._results
        if from_json(Timing, to_json(self._asked.timing)) != results.timing:
            self._differs(None, "its timing is not what this bench makes of the manifest")
        for model in results.models:
            ours = self._models.get(model.name)
            if ours is None:
                self._note(model.name, "this bench can make no such model of the manifest: taken on trust")
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
    """The settings that a manifest names method by method; what else it asks for, versions differ in."""
    entries = [methods] if isinstance(methods, str) else methods if isinstance(methods, list) else []
    named = {frozenset(map(str, entry)) for entry in entries if isinstance(entry, list)}
    return named | {frozenset[str]() for entry in entries if entry == "naive"}


def _stated_of_models(
    entries: Mapping[str, Mapping[str, Any]], models: tuple[Model, ...]
) -> Iterator[tuple[str, Any, Any]]:
    for model in models:
        entry = entries[model.name]
        recipe, architecture = entry.get("recipe", {}), entry.get("architecture", {})
        if isinstance(recipe, dict) and isinstance(recipe.get("optimizer"), str):
            recipe = recipe | {"optimizer": {"name": recipe["optimizer"]}}
        yield f"{model.name}/recipe", recipe, to_json(model.recipe)
        if isinstance(architecture, dict) and architecture:
            found = {"model_type": model.family, **model.architecture}
            silent = (INERT | TOKENS) - found.keys()
            told = {key: value for key, value in architecture.items() if key not in silent}
            yield f"{model.name}/architecture", told, found


def _contradiction(stated: Any, found: Any, place: str) -> str | None:
    """The first place where something is stated and is not so; None where all of it is."""
    if isinstance(stated, dict) and isinstance(found, dict):
        parts = (_contradiction(value, found.get(key), f"{place}/{key}") for key, value in stated.items())
        return next(filter(None, parts), None)
    return None if stated == found else place
