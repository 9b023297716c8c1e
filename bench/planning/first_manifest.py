"""Write a first manifest from a few answers: model, precision, tokens or samples to train on, hours, rent.

In: texts that a person typed. Out: the values that they mean, and the document of a manifest; BadInput says
what an answer may be. Reads the config.json that an answer names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bench.base.errors import BadInput, in_json, near, nearest
from bench.base.files import read_bounded
from bench.base.form_mistakes import written_json
from bench.base.gpu_catalogue import GpuModel, find_gpu_model
from bench.base.gpu_names import typed_names
from bench.base.kinds_of_file import MODEL_CONFIG
from bench.base.strict_json import tagged_infinity
from bench.planning.manifest import MAX_BYTES
from bench.training.models import Precision, families
from bench.training.models.model import INERT
from bench.training.models.paper_code import find_model
from bench.training.models.zoo import model_names
from bench.training.objectives import Objective, ObjectiveName, known_objectives, objective_of
from bench.training.vendor import transformers_source

SCHEMA_FILE = "manifest-v1.schema.json"  # the name of the schema beside a manifest
PUBLISHED = "published"  # the answer that keeps what a known model's recipe says
NONE = "none"
PRECISIONS = get_args(Precision)
# Objectives by the last part of a class's name in the "architectures" of a config.json.
OBJECTIVES: Mapping[str, ObjectiveName] = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "ForImageClassification": "image-classification",
    "ForMaskedImageModeling": "masked-image",
    "ForAudioClassification": "audio-classification",
    "ForSpeechSeq2Seq": "speech-recognition",
}
BATCHES = {"tokens": 256}  # samples of a step of a new recipe, by the objective's unit
OTHER_BATCH = 1024
LONGEST_SAMPLE = 4096  # tokens of a new recipe's sample, if the model has as many positions
POSITIONS = ("max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings")
FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
Unit = Literal["tokens", "samples"]
AMOUNT = re.compile(r"([\d.]+)\s*([kmbt]?)\s*(tokens?|samples?|images?|pairs?)?")


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """A config.json of a model that bench does not know by name."""

    path: Path
    name: str
    architecture: Mapping[str, Any]
    objective: ObjectiveName


Chosen = str | OwnConfig  # the name of a known model, or a configuration


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a model reads in its whole training."""

    count: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class HourlyRent:
    """The price of an hour of one GPU of a kind, in US dollars."""

    gpu: GpuModel
    typed: str  # the short name that people type
    dollars: float


@dataclass(frozen=True, slots=True)
class FirstAnswers:
    """The answers from which a first manifest is made; None: as published, no limit, no rent."""

    model: Chosen
    precision: Precision | None
    amount: Amount | None
    hours: float | None
    rent: HourlyRent | None


def chosen_model(text: str) -> Chosen:
    """Return the known model of this name, or the configuration at this path: a file, or its folder."""
    if find_model(text) is not None:
        return text
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.exists():
        return _own_config(path)
    look = "or the path of a config.json; bench plan --list-models tells about the names"
    hint = nearest(text, model_names(), look)
    raise BadInput(f"{in_json(text)} is neither a model here nor a file", advice=hint)


def aim_of(model: Chosen) -> Objective:
    """Return the objective that a chosen model is trained for."""
    if isinstance(model, OwnConfig):
        return objective_of(model.objective)
    found = find_model(model)
    assert found is not None
    return found.recipe.aim


def chosen_precision(text: str, model: Chosen) -> Precision | None:
    """Return a precision; None keeps that of a known model's recipe."""
    allowed = [*([] if isinstance(model, OwnConfig) else [PUBLISHED]), *PRECISIONS]
    if text not in allowed:
        raise BadInput(f"{in_json(text)} is no precision", advice=nearest(text, allowed))
    return None if text == PUBLISHED else text  # type: ignore[return-value]  # it is one of PRECISIONS


def chosen_amount(text: str, model: Chosen) -> Amount | None:
    """Return how much is read: 300B tokens, 1.28M samples; None keeps the length of a known recipe."""
    if text == PUBLISHED and not isinstance(model, OwnConfig):
        return None
    in_tokens = aim_of(model).unit == "tokens"
    form = AMOUNT.fullmatch(text.lower().replace(",", "").replace("_", "").strip())
    number = _number(form[1]) * FACTORS[form[2]] if form else math.nan
    if form is None or not 1 <= number <= 2**50:
        kept = "" if isinstance(model, OwnConfig) else f"{PUBLISHED}, "
        example = "300B tokens" if in_tokens else "1.28M samples"
        advice = f"allowed: {kept}a number such as {example}; K, M, B and T are powers of a thousand"
        raise BadInput(f"{in_json(text)} is no amount of data", advice=advice)
    word = form[3] or ("tokens" if in_tokens else "samples")
    unit: Unit = "tokens" if word.startswith("token") else "samples"
    if unit == "tokens" and not in_tokens:
        found = f"{aim_of(model).name} reads no tokens"
        raise BadInput(found, advice=f"write samples: {text.lower().partition('tok')[0].strip()} samples")
    return Amount(round(number), unit)


def chosen_hours(text: str) -> float | None:
    """Return the hours that the measurement may take; None: no limit."""
    if text == NONE:
        return None
    hours = _number(text.lower().removesuffix("h").strip())
    if not 0 < hours < 10_000:
        raise BadInput(f"{in_json(text)} is no number of hours", advice=f"allowed: 0.5, 1, 8, or {NONE}")
    return hours


def chosen_rent(text: str) -> HourlyRent | None:
    """Return the rent of a GPU: 2.50 h100, h100 2.50 or h100=2.50; None for no rent."""
    if text == NONE:
        return None
    words = text.replace("=", " ").replace("$", " ").split()
    prices = [word for word in words if not math.isnan(_number(word))]
    names = [word for word in words if word not in prices]
    price = _number(prices[0]) if len(prices) == 1 else math.nan
    if not names or not 0 < price < 100_000:
        advice = f"allowed: dollars an hour of one GPU, and the GPU, such as 2.50 h100; or {NONE}"
        raise BadInput(f"{in_json(text)} is no rent", advice=advice)
    gpu = find_gpu_model(" ".join(names))
    if gpu is None:
        found = f"{in_json(' '.join(names))} is no GPU that bench knows"
        raise BadInput(found, advice=nearest("-".join(names), typed_names()))
    short = next((typed for typed, name in typed_names().items() if name == gpu.name), gpu.name)
    return HourlyRent(gpu, short, price)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _own_config(path: Path) -> OwnConfig:
    """Read a configuration; raise BadInput for another file, or if its model's objective is unknown."""
    where = str(path)
    advice = "a model's name, or the path of its config.json"
    data = read_bounded(
        path,
        MAX_BYTES,
        what="",
        too_large="larger than 1 MiB: this is no config.json",
        missing_advice=advice,
        wanted=MODEL_CONFIG,
    )
    config = written_json(data, where, MODEL_CONFIG, tagged_infinity)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        found = "has no model_type, so it is no configuration of transformers"
        raise BadInput(found, where=where, advice=advice)
    _require_known_type(config["model_type"], where)
    objective = next(_objectives(config), None)
    if objective is None:
        raise BadInput(_without_objective(config), where=where, advice=_trained_classes(config["model_type"]))
    kept = {key: config[key] for key in config if key not in INERT - {"model_type", "id2label"}}
    if isinstance(labels := kept.pop("id2label", None), dict):
        kept.setdefault("num_labels", len(labels))
    return OwnConfig(path, _name_of(path), kept, objective)


def _name_of(path: Path) -> str:
    """Return a name for the model of a config.json: that of its folder, in the letters of a manifest."""
    path = path.absolute()
    plain = path.parent.name if path.name == "config.json" else path.stem
    name = re.sub(r"[^a-z0-9._-]+", "-", plain.lower()).strip("-._")[:60] or "model"
    return f"my-{name}" if find_model(name) else name


def _require_known_type(model_type: str, where: str) -> None:
    """Refuse a type that neither bench nor transformers has; without transformers, every type may be one."""
    known = transformers_source.types()
    if known and model_type not in known and model_type not in families():
        close = near(model_type, [*known, *families()])
        advice = f'nearest: "{close[0]}"' if close else "write a module of your own"
        raise BadInput(f"{in_json(model_type)} is not a type of transformers", where=where, advice=advice)


def _objectives(config: Mapping[str, Any]) -> Iterator[ObjectiveName]:
    if family := families().get(config["model_type"]):
        yield family.objectives[0]
    classes = _classes(config)
    for name in classes:
        yield from (aim for end, aim in OBJECTIVES.items() if name.endswith(end))
    # BART's class is listed for masked-lm too, and was trained as an encoder and a decoder: the last counts.
    listed = _listed_classes(config["model_type"])
    yield from (aim for aim in reversed(listed) if listed[aim] in classes)
    if isinstance(config.get("text_config"), dict) and isinstance(config.get("vision_config"), dict):
        yield "contrastive"
    elif config.get("is_encoder_decoder"):
        yield "speech-recognition" if "num_mel_bins" in config else "sequence-to-sequence"
    elif config["model_type"] == "dit":
        yield "denoising"
    elif "vocab_size" in config and not classes:
        yield "causal-lm"


def _classes(config: Mapping[str, Any]) -> list[str]:
    """Return the names of classes in a configuration's "architectures"."""
    classes = config.get("architectures")
    return [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []


def _listed_classes(model_type: str) -> dict[ObjectiveName, str]:
    """Return the classes that transformers lists for a type, by their objectives; none without it."""
    found = {
        aim.name: transformers_source.trained_by(model_type, aim.mapping)
        for aim in known_objectives().values()
    }
    return {aim: name for aim, name in found.items() if name}


def _without_objective(config: Mapping[str, Any]) -> str:
    """Say why a configuration tells no objective."""
    if classes := _classes(config):
        return f"is for {classes[0]}, which bench does not train"
    return f"does not say what a {config['model_type']} learns"


def _trained_classes(model_type: str) -> str:
    """Say which classes of a type bench trains, or how else an architecture can be described."""
    if listed := _listed_classes(model_type):
        choices = ", ".join(f'["{name}"] ({aim})' for aim, name in listed.items())
        return f'set "architectures" to {choices}'
    if model_type in transformers_source.types():
        return f"transformers has no class of {model_type} that bench trains; write a module of your own"
    return f"write the recipe by hand, with one of these objectives: {', '.join(known_objectives())}"


def _sizes(model: OwnConfig) -> dict[str, int]:
    """Return the sizes of a sample for a new recipe: those of the model, up to a limit."""
    most = min(next(_positions(model), LONGEST_SAMPLE), LONGEST_SAMPLE)
    length = 1 << (most.bit_length() - 1)  # a power of two: some have two more positions
    possible = {"sequence_length": length, "target_length": length, "audio_seconds": 30}
    if "image_size" not in model.architecture and "vision_config" not in model.architecture:
        possible["image_size"] = 224
    return {size: possible[size] for size in objective_of(model.objective).sizes if size in possible}


def _positions(model: OwnConfig) -> Iterator[int]:
    """Yield numbers of positions of the text that a model reads: those that it states, then defaults."""
    text = model.architecture.get("text_config", model.architecture)
    model_type = model.architecture["model_type"]
    before = 0
    if transformers_source.counts_positions_after_padding(model_type):
        padding = transformers_source.field(model_type, "pad_token_id", text)
        before = int(padding) + 1 if isinstance(padding, int | float) else 0
    for name in POSITIONS:
        names = (name, *sorted(transformers_source.other_names(name)))
        given = (text[one] for one in names if one in text)
        default = transformers_source.field(model_type, name, text)
        for one in (*given, default):
            if isinstance(one, int | float) and one > before:
                yield int(one) - before
    in_part = transformers_source.default_in_part(model_type, "text_config", POSITIONS[0])
    if in_part is not None:
        yield in_part


def first_manifest(name: str, answers: FirstAnswers) -> dict[str, Any]:
    """Return the document of a manifest; fields that would only repeat a default are left out."""
    document: dict[str, Any] = {"$schema": SCHEMA_FILE, "schema": "bench/manifest/v1"}
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        document["name"] = name
    document["models"] = [_entry(answers)]
    if answers.hours is not None:
        minutes = answers.hours * 60
        document["budget_minutes"] = int(minutes) if minutes.is_integer() else minutes
    return document


def _entry(answers: FirstAnswers) -> str | dict[str, Any]:
    model, changes = answers.model, _changes(answers)
    if isinstance(model, str):
        return {"name": model, "recipe": changes} if changes else model
    aim = objective_of(model.objective)
    recipe: dict[str, Any] = {"objective": model.objective, "batch_size": BATCHES.get(aim.unit, OTHER_BATCH)}
    recipe |= changes | _sizes(model)
    return {"name": model.name, "architecture": dict(model.architecture), "recipe": recipe}


def _changes(answers: FirstAnswers) -> dict[str, Any]:
    """Return the fields of the recipe that the answers set."""
    changes: dict[str, Any] = {}
    if answers.precision is not None:
        changes["precision"] = answers.precision
    match answers.amount:
        case Amount(count, "tokens"):
            changes["tokens"] = count
        case Amount(count, "samples"):
            changes |= {"epochs": 1, "samples": count}
    return changes


def as_text(document: Mapping[str, Any]) -> bytes:
    """Return JSON with an indent of 2, which ends with a line break."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def prices_document(rent: HourlyRent, day: str) -> dict[str, Any]:
    """Return a file of prices (docs/prices.md) that has only this rent."""
    quote = {"gpu": [rent.gpu.name], "price": rent.dollars, "date": day, "source": "bench init"}
    return {"schema": "bench/prices/v1", "currency": "USD", "rents": [quote]}
