"""`bench plan --list-models`: the models that a manifest can name, by what they learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from bench.base.errors import BadInput, nearest
from bench.base.strict_json import field_values, to_json
from bench.base.terminal import Table, Wrapped, fitted_tables, plain_columns, print_json, wrapped
from bench.base.terminal_width import columns
from bench.training.models import Model, known_models, parameters_of
from bench.training.models.zoo import ZooModel, zoo_model, zoo_names
from bench.training.objectives import known_objectives

DETAILED = 4  # listed models, up to which everything about them is shown
WIDTH = 79  # columns
LEAST_WIDTH = 36  # columns of a detail beside its name


def print_models(words: Sequence[str], *, as_json: bool) -> None:
    """Print the models whose name, architecture or objective has all of these words."""
    every: list[Model | ZooModel] = [*known_models().values(), *filter(None, map(zoo_model, zoo_names()))]
    chosen = [entry for entry in every if all(word.lower() in _searched(entry) for word in words)]
    if not chosen:
        names = [_model(entry).name for entry in every]
        raise BadInput(f"no model has {' and '.join(words)}", advice=nearest(words[0], names))
    if as_json:
        print_json([_as_json(entry) for entry in chosen])
        return
    by_aim = {
        aim.title: [_row(entry) for entry in chosen if _model(entry).recipe.objective == aim.name]
        for aim in known_objectives().values()
    }
    by_aim = {title: rows for title, rows in by_aim.items() if rows}
    heads = plain_columns(("model", "parameters", "batch", "size", "steps", "precision"), range(1, 5))
    steps = ("precision", "size", "batch", Wrapped("model", 16))
    tables = fitted_tables([Table(heads, rows) for rows in by_aim.values()], steps).texts
    for title, text in zip(by_aim, tables, strict=True):
        print(f"{wrapped([title], '')}\n\n{text}\n")
    if len(chosen) <= DETAILED:
        print("\n".join(line for entry in chosen for line in _details(entry)))
    else:
        print(wrapped(["size: tokens, pixels or seconds; bench plan --list-models WORD tells more"], ""))


def _model(entry: Model | ZooModel) -> Model:
    return entry.model if isinstance(entry, ZooModel) else entry


def _searched(entry: Model | ZooModel) -> str:
    model = _model(entry)
    return f"{model.name} {model.family} {model.recipe.objective}".lower()


def _row(entry: Model | ZooModel) -> tuple[str, ...]:
    model, recipe = _model(entry), _model(entry).recipe
    sizes = (recipe.audio_seconds, recipe.image_size, recipe.sequence_length, recipe.target_length)
    size = " + ".join(f"{size:,}" for size in sizes if size) or "-"
    count = parameters_of(model) or (entry.parameters if isinstance(entry, ZooModel) else None)
    return (model.name, _short(count), f"{recipe.batch_size:,}", size, f"{recipe.steps:,}", recipe.precision)


def _short(count: float | None) -> str:
    """Return a number of parameters as people say it: 124M, 8.03B; "-" if it is unknown."""
    if count is None:
        return "-"
    value, unit = (count / 1e9, "B") if count >= 0.9995e9 else (count / 1e6, "M")
    return f"{value:.3g}{unit}"


def _details(entry: Model | ZooModel) -> Iterator[str]:
    model = _model(entry)
    facts = {"type": model.family, "recipe": model.recipe.source}
    if isinstance(entry, ZooModel):
        facts["architecture"] = entry.architecture_source
        facts["parameters"] = entry.parameters_source
        if entry.cost:
            facts["cost"] = entry.cost
        if entry.notes:
            facts["notes"] = entry.notes
    yield model.name
    for name, text in facts.items():
        first = f"  {name:<12}  "
        yield fill(text, _width(), initial_indent=first, subsequent_indent=" " * len(first))


def _width() -> int:
    return max(LEAST_WIDTH, min(columns() or WIDTH, WIDTH))


def _as_json(entry: Model | ZooModel) -> Any:
    if isinstance(entry, Model):
        return to_json(entry)
    published = {name: value for name, value in field_values(entry).items() if name != "model"}
    return {**to_json(entry.model), "published": published}
