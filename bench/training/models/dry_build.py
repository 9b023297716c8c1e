"""Build models without a family file, before anything is measured and without contents, and count them.

In: the models of a manifest. Out: their counts, or BadInput with all mistakes in them.
transformers accepts unknown fields silently, and would then build another model than the manifest means.
The build runs in a separate process, since planning imports neither transformers nor torch.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot, Mistake, in_json, raised
from bench.base.strict_json import from_json, to_json
from bench.training.models import Counted, Model, families, family_of, has_formulas, module_families
from bench.training.models.adapters import FamilyWithAdapters, adapter_mistakes
from bench.training.models.class_mistakes import class_mistakes, several_models
from bench.training.models.counted_operations import built_parts, counted
from bench.training.models.generic import REPOSITORY_CODE, TransformersFamily, configured, kinds
from bench.training.models.model import ADAPTERS
from bench.training.models.own_models import meant_field, unread_field
from bench.training.models.own_module_pass import pass_mistakes
from bench.training.models.shipped_counts import shipped_counts
from bench.training.vendor import torch_inside, transformers_inside, transformers_source

# Environment of the building process: no downloads, and no GPU, which a trial may be using.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

COLLECTED_AFTER = 200_000  # new objects; 700 by default

# Lengths in a recipe, and the fields of a configuration of which the first that is there limits each.
POSITIONS = {
    "sequence_length": ("max_position_embeddings", "max_encoder_position_embeddings"),
    "target_length": ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings"),
}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The counts and the remarks from building models without contents."""

    counted: Mapping[str, Counted]  # by name, of models without formulas
    remarks: tuple[str, ...]  # about fields that do not matter, for people


def rehearse(models: Sequence[Model], where: str) -> Rehearsal:
    """Build the models that have neither formulas nor shipped counts, as all with adapters.

    If torch or transformers is missing, none is built, and a remark for each says so.

    Raises BadInput with all mistakes in these models.
    """
    uncounted = {f"/models/{i}": model for i, model in enumerate(models) if not has_formulas(model)}
    shipped = {model.name: counts for model in uncounted.values() if (counts := shipped_counts(model))}
    new = {path: model for path, model in uncounted.items() if model.name not in shipped}
    if missing := [package for package in ("torch", "transformers") if find_spec(package) is None]:
        lacks = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed here"
        return Rehearsal(shipped, tuple(f"{path}: {lacks}, so it is counted when it runs" for path in new))
    if not new:
        return Rehearsal(shipped, ())
    process = [sys.executable, "-m", "bench.training.models.dry_build"]
    request = json.dumps({path: to_json(model) for path, model in new.items()})
    done = subprocess.run(
        process, input=request, env=os.environ | ENVIRONMENT | {"PYTHONUTF8": "1"},
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentCannot(f"transformers cannot try these models: {reason}", where=where)
    builds = from_json(dict[str, DryBuild], json.loads(done.stdout.splitlines()[-1]))
    if mistakes := [mistake for build in builds.values() for mistake in build.mistakes]:
        raise BadInput.of(mistakes, where)
    counted_models = {new[path].name: build.counted for path, build in builds.items() if build.counted}
    remarks = tuple(remark for build in builds.values() for remark in build.remarks)
    return Rehearsal(shipped | counted_models, remarks)


def main() -> None:
    """Read models as JSON from stdin, keyed by their paths in the manifest; print a DryBuild for each."""
    request = json.load(sys.stdin)
    _collect_seldom()
    builds = {path: dry_build(from_json(Model, model), path) for path, model in request.items()}
    print(json.dumps({path: to_json(build) for path, build in builds.items()}))


def _collect_seldom() -> None:
    """Let Python look for unreachable objects seldom, and not among those of imported packages.

    Graphs of tensors without contents are many small objects. Looking through them took a fifth of the time.
    """
    import transformers.modeling_utils  # noqa: F401

    torch_inside.import_partitioner()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


@dataclass(frozen=True, slots=True)
class DryBuild:
    """The counts of a model, or the mistakes in it."""

    counted: Counted | None  # None if there are mistakes
    mistakes: tuple[Mistake, ...] = ()
    remarks: tuple[str, ...] = ()


def dry_build(model: Model, path: str) -> DryBuild:
    """Check a model's fields, then build and run it without contents to count it."""
    place = f"{path}/architecture"
    try:
        if later := _counted_later(model, path):
            return DryBuild(None, remarks=(later,))
        judged = _judge_architecture(model, path)
        if judged.mistakes:
            return judged
        family, own = family_of(model), module_families().get(model.family)
        assert isinstance(family, TransformersFamily)
        if isinstance(family, FamilyWithAdapters):
            place = f"{path}/recipe/lora/targets"
            if mistakes := tuple(adapter_mistakes(model, family, f"{path}/recipe/lora")):
                return DryBuild(None, mistakes)
        if model.recipe.precision == "fp8" and not (own and own.tries_a_pass):
            in_fp8 = _fp8_judged(model, family, path)
            if in_fp8.mistakes:
                return in_fp8
            judged = replace(judged, remarks=judged.remarks + in_fp8.remarks)
        uncounted = list[str]()
        counts = counted(model, family, uncounted.append)
        if own and own.tries_a_pass and (mistakes := tuple(pass_mistakes(model, counts, path))):
            return DryBuild(None, mistakes)
        remarks = (*judged.remarks, *(f"{path}: {reason}" for reason in uncounted))
        return replace(judged, counted=counts, remarks=remarks)
    except BadInput as error:
        mistake = Mistake(_blamed(place, error.message, model), error.message, "allowed: what it can build")
    except ImportError as error:
        needed, _, _ = " ".join(str(error).split()).partition(". ")  # without advice to install it
        mistake = Mistake(place, f"cannot run: {needed}", "allowed: what can run")
    except Exception as error:  # an architecture's code may raise anything
        place = _blamed(place, str(error), model)
        mistake = Mistake(place, f"cannot run: {_reason(error)}", "allowed: what can run")
    return DryBuild(None, (mistake,))


def _blamed(place: str, error: str, model: Model) -> str:
    """Return the path of the one field below `place` that an error names or quotes; else `place` itself.

    Only an architecture's fields are looked at. Errors quote texts. Numbers stand in them without quotes, and
    positive ones may be anything.
    """
    if not place.endswith("/architecture"):
        return place
    fields = list(_fields(model.architecture))
    named = {path for path, _ in fields if f"ield '{path.rpartition('/')[2]}'" in error}
    quoted = {path for path, value in fields if isinstance(value, str) and f"'{value}'" in error}
    negative = {
        path
        for path, value in fields
        if isinstance(value, int | float) and value < 0 and re.search(rf"(?<![\w.-]){value}(?![\w.])", error)
    }
    found = named or quoted or negative
    return place + found.pop() if len(found) == 1 else place


def _fields(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field of an architecture, those of its parts too."""
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _fields(part, f"{path}/{name}")
        else:
            yield f"{path}/{name}", part


def _reason(error: Exception) -> str:
    """Return in words why an architecture's code failed."""
    if isinstance(error, AttributeError) and isinstance(error.obj, transformers_inside.configurations()):
        return f"its code reads the field {error.name}, which the configuration does not have"
    return raised(error)


def _counted_later(model: Model, path: str) -> str | None:
    """Return the remark that a package is missing here without which the model cannot be built."""
    own = module_families().get(model.family)
    for package, place in (
        (own.package if own else None, "architecture"),
        (ADAPTERS if model.recipe.lora else None, "recipe/lora"),
    ):
        if package and find_spec(package) is None:
            return f"{path}/{place}: {package} is not installed here, so it is counted when it runs"
    return None


def _judge_architecture(model: Model, path: str) -> DryBuild:
    """Return the mistakes in an architecture's fields, and remarks on them, without counts."""
    if model.family in families():
        return DryBuild(None)  # judged when the manifest was read
    if own := module_families().get(model.family):
        return DryBuild(None, tuple(own.mistakes_by_package(model, path)))
    auto_class = kinds()[model.recipe.objective]
    if several := [*several_models(model, auto_class, path)]:
        return DryBuild(None, tuple(several))
    configuration = configured(model)
    unread = _unread_fields(model, configuration)
    mistakes = [
        *_objective_mistakes(model, configuration, path),
        *class_mistakes(model, auto_class, path),
        *_misspelt_fields(model, configuration, unread, path),
        *_misspelt_in_towers(model, configuration, path),
        *_size_mistakes(model, configuration, path),
    ]
    remarks = tuple(unread_field(model.family, key, path) for key in unread)
    return DryBuild(None, tuple(mistakes), remarks)


def _fp8_judged(model: Model, family: TransformersFamily, path: str) -> DryBuild:
    """Return which of a model's layers cannot multiply in fp8: a mistake if none can, else a remark."""
    total, fitting = _fp8_layers(model, family)
    if not fitting:
        found = '"fp8": no linear layer of its blocks has sizes that are multiples of 16'
        return DryBuild(None, (Mistake(f"{path}/recipe/precision", found, "allowed: bf16"),))
    if rest := total - fitting:
        found = f"{rest} of the {total} linear layers of its blocks have sizes that are no multiples of 16"
        return DryBuild(None, remarks=(f"{path}/recipe/precision: {found}, and multiply in bf16",))
    return DryBuild(None)


def _fp8_layers(model: Model, family: TransformersFamily) -> tuple[int, int]:
    """Return the number of plain linear layers in a model's blocks, and how many can multiply in fp8."""
    import torch
    from torch import nn

    from bench.training.models.fp8 import fp8_layers

    with torch.device("meta"):
        module = family.build_with(model, "eager")
    blocks = family.blocks(module)
    linear = {part for block in blocks for part in block.modules() if type(part) is nn.Linear}
    return len(linear), len(fp8_layers(module, blocks))


def _objective_mistakes(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    objective = model.recipe.objective
    able = [name for name, kind in kinds().items() if transformers_inside.can_build(kind, configuration)]
    no_causal = _why_not_causal(model, configuration)
    if no_causal and "causal-lm" in able:
        able.remove("causal-lm")
    if objective not in able:
        found = no_causal if no_causal and objective == "causal-lm" else f'"{objective}" does not fit'
        allowed = ", ".join(able) or "none: transformers has no class of it that bench trains"
        yield Mistake(f"{path}/recipe/objective", found, f"allowed: {allowed}")
        return
    sees_all = "masked-lm" in able and not configuration.is_encoder_decoder
    for field in ("is_decoder", "causal"):
        value = transformers_inside.value_of(configuration, field)
        if objective == "causal-lm" and sees_all and value is False:
            found = f"false: a token of {model.family} sees those that follow"
            yield Mistake(f"{path}/architecture/{field}", found, "allowed for causal-lm: true")


def _why_not_causal(model: Model, configuration: Any) -> str | None:
    """Return why a type's class for causal language models, if there is one, trains something else."""
    if configuration.is_encoder_decoder:
        return f'"causal-lm" would train the decoder of {model.family} alone'
    if transformers_source.sees_following_tokens(model.family):
        return f'"causal-lm": in transformers, a token of {model.family} sees those that follow'
    return None


def _unread_fields(model: Model, configuration: Any) -> list[str]:
    """Return the fields that change neither the configuration nor the model, and that no code reads."""
    left_out = [key for key in model.architecture if key == REPOSITORY_CODE]
    default = type(configuration)()
    unknown = [
        key
        for key in model.architecture
        if key in vars(configuration)
        and not transformers_inside.has_field(default, key)
        and not transformers_source.reads_field(model.family, key)
    ]
    if not unknown:
        return left_out
    rest = {key: value for key, value in model.architecture.items() if key not in unknown}
    without = replace(model, architecture=rest)
    if _facts(configured(without), unknown) != _facts(configuration, unknown):
        return left_out
    family = TransformersFamily(model.family)
    same = built_parts(without, family) == built_parts(model, family)
    return [*left_out, *unknown] if same else left_out


def _facts(configuration: Any, without: Sequence[str]) -> Mapping[str, Any]:
    return {key: value for key, value in configuration.to_dict().items() if key not in without}


def _misspelt_fields(model: Model, configuration: Any, unread: Sequence[str], path: str) -> Iterator[Mistake]:
    known = transformers_inside.field_names(type(configuration)())
    fields = {name: transformers_inside.value_of(configuration, name) for name in known}
    for key in unread:
        if meant := meant_field(key, _without_filled(model, model.architecture), fields):
            found = f"{type(configuration).__name__} has no such field"
            hint = f'nearest: "{meant}"; or leave it out: nothing reads it'
            yield Mistake(f"{path}/architecture/{key}", found, hint)


def _without_filled(model: Model, given: Mapping[str, Any], inside: str = "") -> Mapping[str, Any]:
    """Leave out fields with the value that bench gives them if a manifest lacks them: these may be meant."""
    filled = model.recipe.aim.defaults_of_types.get(model.family, {})
    return {key: value for key, value in given.items() if filled.get(f"{inside}{key}", ...) != value}


def _misspelt_in_towers(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    """Yield the misspelt fields inside of the configurations of a model's towers."""
    for tower in model.recipe.aim.towers:
        given = _without_filled(model, model.architecture[tower], f"{tower}/")
        held = getattr(configuration, tower)
        default = type(held)()
        known = transformers_inside.field_names(default)
        fields = {name: getattr(held, name, None) for name in known}
        for key in given:
            unknown = not hasattr(default, key) and not transformers_source.reads_field(model.family, key)
            if unknown and (meant := meant_field(key, given, fields)):
                found = f"{type(held).__name__} has no such field"
                yield Mistake(f"{path}/architecture/{tower}/{key}", found, f'nearest: "{meant}"')


def _size_mistakes(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    aim = model.recipe.aim
    parts = [(f"{tower}/", getattr(configuration, tower)) for tower in aim.towers] or [("", configuration)]

    def size(name: str, inside: str = parts[0][0], holder: Any = parts[0][1]) -> tuple[str, Any]:
        field = transformers_inside.field_named(holder, name)
        return f"{path}/architecture/{inside}{field}", transformers_inside.value_of(holder, field)

    for part in parts:
        place, layers = size("num_hidden_layers", *part)
        if type(layers) is int and layers < 1:
            yield Mistake(place, f"{layers} is less than allowed", "allowed: a whole number, at least 1")
    if "tokens" not in aim.data:
        return
    place, padding = size("pad_token_id")
    vocabulary = aim.vocabulary(model.architecture)
    if type(padding) is int and padding >= vocabulary:
        found = f"{in_json(padding)} is none of {vocabulary} tokens"
        yield Mistake(place, found, f"allowed: 0 to {vocabulary - 1}, or null")
    counted_after_padding = transformers_source.counts_positions_after_padding(model.family)
    for field, names in POSITIONS.items():
        place, positions = next((found for found in map(size, names) if type(found[1]) is int), ("", None))
        length = getattr(model.recipe, field)
        if length is None or positions is None or positions < 0:  # XLNet says -1: it has no limit
            continue
        if type(padding) is int and counted_after_padding:
            positions -= padding + 1
        if positions < length:
            found = f"{length} is more than the {positions} positions of the architecture"
            allowed = f"allowed: at most {positions}, or more in {place}"
            yield Mistake(f"{path}/recipe/{field}", found, allowed)


if __name__ == "__main__":
    main()
