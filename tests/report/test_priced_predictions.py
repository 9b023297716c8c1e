"""The cost of a run on a machine that is not here, in digits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.prediction.interruptions import Interruptions, interrupted
from bench.planning.prediction.predicted_machines import Predicted
from bench.report.compare.owning import Owning, Percentage
from bench.report.compare.priced_predictions import RunCost, machine_text, nodes_of, priced
from bench.report.compare.prices import Electricity, GpuPrice, MachinePrice, PriceBook, Rent, SystemPrice

WHEN = ("2026-06-01", "a quote")
GPU = "NVIDIA H200"
FOUND = Predicted(
    model="m", gpu=GPU, gpus=2, label="naive", setting=(), micro_batch=8, accumulation=4, step_seconds=1.0,
    days=5.0, least_days=4.0, most_days=6.0, memory_bytes=2**30, limit="products", kwh=100.0, watts=1400.0,
    source="a source", parts=(), update_seconds=0.1, units=6e9,
)  # fmt: skip
BOOK = PriceBook(
    "USD",
    life_years=4.0,
    machines=(MachinePrice((GPU,), 2, 73_000.0, *WHEN), MachinePrice((GPU,), 8, 292_000.0, *WHEN)),
    rents=(Rent((GPU,), 4.0, *WHEN),),
)


def costs(book: PriceBook, found: Predicted = FOUND) -> list[float | None]:
    made = priced(found, book)
    return [one and one.amount for one in (made.rented, made.owned)]


def test_a_run_costs_its_hours_of_rent_or_its_share_of_the_machines_life() -> None:
    """2 GPUs at $4 an hour for 120 hours; 5 of 1,460 days of $73,000."""
    assert costs(BOOK) == pytest.approx([960.0, 250.0])
    assert priced(FOUND, BOOK).units_per_dollar == pytest.approx(6e9 / 960)


def test_an_owned_run_also_pays_for_electricity_and_for_upkeep() -> None:
    fed = replace(BOOK, electricity=Electricity(0.2, *WHEN, overhead=1.5))
    assert costs(fed) == pytest.approx([960.0, 250.0 + 30.0])
    kept = replace(fed, owning=Owning(operations=Percentage(10.0, *WHEN)))
    assert costs(kept) == pytest.approx([960.0, 250.0 + 30.0 + 5 * 7_300 / 365])


def test_machines_beyond_eight_gpus_are_several_nodes() -> None:
    assert [nodes_of(gpus) for gpus in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
    assert costs(BOOK, replace(FOUND, gpus=16)) == pytest.approx([7_680.0, 2_000.0])
    in_two_of_five = replace(BOOK, machines=(MachinePrice((GPU,), 5, 146_000.0, *WHEN),))
    assert costs(in_two_of_five, replace(FOUND, gpus=9)) == pytest.approx([4_800.0, 1_000.0])


def test_a_cost_without_a_quote_is_missing() -> None:
    assert costs(replace(BOOK, machines=())) == [pytest.approx(960.0), None]
    assert costs(replace(BOOK, rents=())) == [None, pytest.approx(250.0)]
    assert priced(FOUND, replace(BOOK, rents=())).units_per_dollar is None
    single = replace(
        BOOK,
        machines=(),
        gpus=(GpuPrice((GPU,), 30_000.0, *WHEN),),
        systems=(SystemPrice(4, 13_000.0, *WHEN),),
    )
    assert costs(single) == pytest.approx([960.0, 250.0])


def test_the_cost_that_is_asked_for_is_that_of_the_rent_or_of_the_own_machine() -> None:
    made = priced(FOUND, BOOK)
    assert made.cost(own=False) is made.rented
    assert made.cost(own=True) is made.owned
    assert isinstance(made.owned, RunCost)
    assert made.owned.quotes == (f"$73,000 for a machine with 2x {GPU}: a quote, 2026-06-01",)


def test_a_machine_is_named_without_its_vendor() -> None:
    assert machine_text(FOUND) == "2x H200"
    assert machine_text(replace(FOUND, gpu="NVIDIA GeForce RTX 4090", gpus=8)) == "8x RTX 4090"


def test_interruptions_lengthen_every_figure_of_a_run_alike() -> None:
    by = Interruptions(every_seconds=36_000, restart_seconds=600, save_seconds=3_600)
    longer = by.factor(2)
    found = interrupted(replace(FOUND, gpus=16), by)  # two machines, each of which stops both
    assert longer > 1.1
    figures = (found.days, found.least_days, found.most_days, found.kwh)
    assert figures == pytest.approx((5.0 * longer, 4.0 * longer, 6.0 * longer, 100.0 * longer))
    assert interrupted(replace(FOUND, kwh=None), by).kwh is None
    assert (found.memory_bytes, found.step_seconds) == (FOUND.memory_bytes, FOUND.step_seconds)
