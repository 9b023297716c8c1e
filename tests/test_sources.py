"""Every figure that ships with bench names its source, and the day on which that was read or measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "bench/data"
# Formats, bench's own choices, counts of models' layers, locks of images, and readings that tests replay.
NO_FIGURES = {"counts.json", "node-check.json", "images.json", "fake", "schema", "report", "monitoring"}
DAY = re.compile(r"20\d\d-\d\d(-\d\d)?")
FILES = sorted(path for path in DATA.rglob("*.json") if path.relative_to(DATA).parts[0] not in NO_FIGURES)


def figures(path: Path) -> Iterator[tuple[str, object, object]]:
    """Yield each figure's name, source and day; a document states them once if they are the same for all."""
    document: Any = json.loads(path.read_text())
    match path.relative_to(DATA).parts:
        case ("gpus.json",):
            for gpu in document:
                yield gpu["name"], gpu["source"], gpu["dated"]
        case ("checks", _):
            yield "properties", "; ".join(document["sources"]), document["dated"]
            for name, figure in document["figures"].items():
                yield name, figure["source"], document["dated"]
        case ("prices.json" | "rents.json",):
            for kind in document.keys() & {"gpus", "systems", "rents"}:
                for price in document[kind]:
                    yield str(price), price["source"], price["date"]
        case ("published.json",):
            for row in document["rows"]:
                source = document["sources"][row["source"]]
                yield row["name"], source["title"], source["day"]
        case ("zoo", _):
            yield "architecture", document["architecture_source"], document["dated"]
            yield "recipe", document["recipe"]["source"], document["dated"]
            yield "parameters", document["parameters_source"], document["dated"]
        case ("reference", "paper.json"):
            yield "tables", document["source"], document["dated"]
            yield "survey", document["survey"]["where"], document["survey"]["dated"]
            for claim in document["text_claims"]:
                yield claim["says"], claim["where"], document["dated"]
        case _:
            yield "all", document["source"], document["dated"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
def test_every_figure_names_its_source_and_a_day(path: Path) -> None:
    found = list(figures(path))
    assert found
    for name, source, day in found:
        assert isinstance(source, str) and len(source) > 3, name
        assert isinstance(day, str) and DAY.fullmatch(day), name


def test_nothing_is_exempt_that_is_not_there() -> None:
    assert {path.name for path in DATA.iterdir()} >= NO_FIGURES
