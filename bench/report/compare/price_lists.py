"""Read rents from two public price lists: the gpu-price-index, and the catalogue of SkyPilot. Pure.

In: the text of a CSV file, whose columns say which list it is. Out: rents, and remarks on rows that gave
none.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import find_gpu_model
from bench.base.names import RentKind
from bench.records.text import count_text
from bench.report.compare.prices import Rent

INDEX_COLUMNS = frozenset(
    {"date", "provider", "pricing", "gpu_model", "sku", "region", "gpu_count", "usd_per_hour"}
)
SKYPILOT_COLUMNS = frozenset(
    {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region"}
)
# Names in both lists that leave out the form of the card: they mean the SXM cards.
NAMES: Mapping[str, str] = {
    "A100": "NVIDIA A100-SXM4-40GB",
    "A100-40GB": "NVIDIA A100-SXM4-40GB",
    "A100-40GB-PCIe": "NVIDIA A100-PCIE-40GB",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "A100-80GB-SXM": "NVIDIA A100-SXM4-80GB",
    "A100-80GB-PCIe": "NVIDIA A100 80GB PCIe",
    "H100-SXM": "NVIDIA H100 80GB HBM3",
    "H200-SXM": "NVIDIA H200",
    "RTX-PRO-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
KINDS: Mapping[str, RentKind] = {"on_demand": "on-demand", "spot": "spot", "reserved": "reserved"}


@dataclass(frozen=True, slots=True)
class NoRent:
    """A row that became no rent: of a GPU that bench does not know, or without a price or number of GPUs."""

    unknown_gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """The cheapest rent of each machine in a price list."""

    rents: tuple[Rent, ...]
    remarks: tuple[str, ...]  # about rows that became no rent


def rents_in(text: str, where: str, *, provider: str | None, date: str | None) -> Imported:
    """Read a price list. SkyPilot's says neither provider nor date, which the caller then must give.

    Raises BadInput for another kind of file.
    """
    reader = csv.DictReader(io.StringIO(text))
    columns = set(reader.fieldnames or ())
    if columns >= INDEX_COLUMNS:
        return _imported([_of_index(row) for row in reader])
    if columns >= SKYPILOT_COLUMNS:
        if not provider or not date:
            missing = [name for name, value in (("--provider", provider), ("--date", date)) if not value]
            advice = f"add {' and '.join(missing)}"
            raise BadInput("SkyPilot's catalogue says neither provider nor day", where=where, advice=advice)
        return _imported(rent for row in reader for rent in _of_skypilot(row, provider, date))
    raise BadInput(
        "is no price list that bench knows",
        where=where,
        advice="known: a day of the gpu-price-index, or a vms.csv of SkyPilot's catalogue",
    )


def _of_index(row: Mapping[str, str]) -> Rent | NoRent:
    kind = KINDS.get(row["pricing"])
    if kind is None:
        return NoRent()
    source = f"{row['sku']} {row['region']}; gpu-price-index"
    return _rent(
        row["gpu_model"], row["gpu_count"], row["usd_per_hour"], kind, row["provider"], row["date"], source
    )


def _of_skypilot(row: Mapping[str, str], provider: str, date: str) -> Iterator[Rent | NoRent]:
    if not row["AcceleratorName"]:  # a machine without a GPU
        return
    source = f"{row['InstanceType']} {row['Region']}; SkyPilot catalogue"
    prices: Sequence[tuple[RentKind, str]] = (("on-demand", row["Price"]), ("spot", row["SpotPrice"]))
    for kind, price in prices:
        if price:
            count = row["AcceleratorCount"]
            yield _rent(row["AcceleratorName"], count, price, kind, provider, date, source)


def _rent(
    name: str, count: str, price: str, kind: RentKind, provider: str, date: str, source: str
) -> Rent | NoRent:
    gpu = find_gpu_model(NAMES.get(name, name))
    if gpu is None:
        return NoRent(name)
    try:
        gpus, dollars = float(count), float(price)
    except ValueError:
        return NoRent()
    if not (gpus >= 1 and gpus.is_integer() and 0 < dollars < math.inf):
        return NoRent()
    return Rent((gpu.name,), dollars, date, source, int(gpus), provider=provider, kind=kind)


def _imported(found: Iterable[Rent | NoRent]) -> Imported:
    cheapest: dict[tuple[object, ...], Rent] = {}
    without, unknown = 0, Counter[str]()
    for rent in found:
        if isinstance(rent, Rent):
            key = (rent.gpu, rent.gpus, rent.kind, rent.provider)
            if key not in cheapest or rent.price < cheapest[key].price:
                cheapest[key] = rent
        elif rent.unknown_gpu:
            unknown[rent.unknown_gpu] += 1
        else:
            without += 1
    remarks = []
    if unknown:
        names = ", ".join(sorted(unknown))
        rows = count_text(unknown.total(), "row")
        remarks.append(f"{rows} of GPUs that bench does not know: {names}")
    if without:
        remarks.append(f"{count_text(without, 'row')} without a price or a whole number of GPUs")
    rents = sorted(cheapest.values(), key=lambda rent: rent.place)
    return Imported(tuple(rents), tuple(remarks))
