"""Training throughputs that others published (data/published.json), and the manifest that measures one here.

Pure, except for reading the file. A row states the model, the machine and the setting of a published figure,
in the terms of a manifest.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.base.errors import BadInput, Mistake, in_json, nearest
from bench.base.files import read_bounded
from bench.base.form_mistakes import form_mistakes, written_json
from bench.base.gpu_catalogue import GPUS_A_NODE
from bench.base.kinds_of_file import PUBLISHED_ROWS
from bench.base.shipped_data import PUBLISHED, read_data
from bench.base.strict_json import from_json, pretty_json
from bench.planning.manifest import MAX_BYTES, Manifest, parse_manifest
from bench.training.methods import Target, free_lunch, known_methods, ordered
from bench.training.setting import Setting


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """A project that published throughputs on a day."""

    title: str
    day: str  # ISO date of the document, or of the last change of its figures
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published throughput: model, machine, setting and rate."""

    name: str
    source: str  # key of the source in the same file
    url: str  # of the document
    quote: str  # the figures as they stand in the document
    software: str
    card: str  # as the driver spells it
    gpus: int
    model: Mapping[str, Any]  # an entry of a manifest's "models"
    methods: tuple[str, ...]  # of the setting, without the methods that cost nothing
    micro_batch: int | None  # None: not published
    per_second_per_gpu: float  # tokens or images
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """A file of published throughputs."""

    schema: Literal["bench/published-rows/v1"]
    sources: Mapping[str, PublishedSource]
    rows: tuple[PublishedRow, ...]

    def row(self, name: str, where: str) -> PublishedRow:
        """Return the row of this name; raise BadInput with the nearest names if there is none."""
        names = [row.name for row in self.rows]
        if name in names:
            return self.rows[names.index(name)]
        raise BadInput(f"has no published row {name!r}", where=where, advice=nearest(name, names))


def shipped_rows() -> PublishedRows:
    """Return the published measurements that come with bench."""
    return from_json(PublishedRows, read_data(PUBLISHED))


def load_rows(path: Path) -> PublishedRows:
    """Read a file of published rows; raise BadInput with every mistake."""
    too_large = "larger than 1 MiB: no published rows"
    data = read_bounded(path, MAX_BYTES, what="the rows", too_large=too_large, wanted=PUBLISHED_ROWS)
    document = written_json(data, str(path), PUBLISHED_ROWS)
    mistakes = [*form_mistakes(PublishedRows, document)]
    if not mistakes:
        mistakes = [*meaning_mistakes(from_json(PublishedRows, document))]
    if mistakes:
        raise BadInput.of(mistakes, str(path), "docs/prediction.md has the form, with an example")
    return from_json(PublishedRows, document)


def meaning_mistakes(rows: PublishedRows) -> Iterator[Mistake]:
    """Yield values of published rows that are impossible, or contradict each other."""
    for key, source in rows.sources.items():
        try:
            datetime.date.fromisoformat(source.day)
        except ValueError:
            found = f"{in_json(source.day)} is no date"
            yield Mistake(f"/sources/{key}/day", found, 'allowed: "2024-05-31" for instance')
    names = [row.name for row in rows.rows]
    for number, row in enumerate(rows.rows):
        place = f"/rows/{number}"
        if row.name in names[:number]:
            yield Mistake(f"{place}/name", f"{in_json(row.name)} is the name of an earlier row", "rename one")
        if row.source not in rows.sources:
            found = f"{in_json(row.source)} is not in /sources"
            yield Mistake(f"{place}/source", found, nearest(row.source, rows.sources))
        for method in row.methods:
            if method not in known_methods():
                found = f"{in_json(method)} is no method"
                yield Mistake(f"{place}/methods", found, nearest(method, known_methods()))
        for field, value in (("gpus", row.gpus), ("micro_batch", row.micro_batch)):
            if value is not None and value < 1:
                yield Mistake(f"{place}/{field}", str(value), "allowed: a number from 1")
        if not 0 < row.per_second_per_gpu < math.inf:
            found = f"{row.per_second_per_gpu:g} is no rate"
            yield Mistake(f"{place}/per_second_per_gpu", found, "allowed: a number above 0")


def manifest_of(row: PublishedRow, methods: Sequence[str | Setting] = ("free-lunch",)) -> Manifest:
    """Return the manifest that measures a published row's model with these methods on one node."""
    entry = dict(row.model)
    if row.micro_batch is not None:
        entry["micro_batch"] = row.micro_batch
    document = {
        "schema": "bench/manifest/v1",
        "name": row.name,
        "models": [entry],
        "gpus": min(row.gpus, GPUS_A_NODE),
        "methods": [each if isinstance(each, str) else list(each) for each in methods],
        "floor": False,
        "gradient_check": False,
    }
    return parse_manifest(pretty_json(document), row.name)


def setting_of(row: PublishedRow, target: Target) -> Setting:
    """Return the row's own methods with every method that costs nothing on the target."""
    (model,) = manifest_of(row).models
    return free_lunch(model, target, ordered(row.methods))
