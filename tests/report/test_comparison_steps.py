"""How rows become a comparison, step by step: evidence for estimates, groups, and what an answer holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.base.strict_json import to_json
from bench.bundle.verify import verify_bundle
from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.records.slowdown import Slowed
from bench.report.compare import comparison
from bench.report.compare.compared_rows import ComparedRun, Machine, RankedRow, Row, gather, rows_of
from bench.report.compare.comparison import Comparison, ModelPart, Refused, Terms, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.extrapolate import Guess, MeasuredRow
from bench.report.compare.prices import PriceBook, Rent
from tests.report.made import bundle

NAME = "NVIDIA H100 80GB HBM3"
MARK = Mark("hot", "it was hot", 0.5)  # type: ignore[arg-type]
SLOWED = Slowed(0, ("heat",), 0.5, None, None, None)


def h100() -> GpuModel:
    gpu = gpu_named(NAME)
    assert gpu is not None
    return gpu


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RankedRow:
    """A row of one measured model on one H100."""
    path = bundle(tmp_path_factory.mktemp("made") / "a.tar")
    found = verify_bundle(path, lambda files: gather(files, with_telemetry=False))
    assert isinstance(found.contents, ComparedRun)
    (row,) = rows_of(path, found, found.contents)
    assert isinstance(row, RankedRow) and row.training_flops
    return row


def on(
    row: RankedRow, name: str, *, days: float | None = None, kind: str = "cuda", **changes: Any
) -> RankedRow:
    """Return a row of another machine, with another figure and other differences."""
    machine = Machine(name, kind, 1, 2**37, f"{name}-{len(changes)}-{days}")
    own = Interval(days, days / 100) if days is not None else row.best.days
    changes.setdefault("step_times", ())  # equal times would make it a copy of the other rows
    changes.setdefault("run_id", machine.identity)
    best = replace(
        row.best, days=own, **({"setting": changes.pop("setting")} if "setting" in changes else {})
    )
    return replace(row, machine=machine, best=best, **changes)


def compared(*rows: Row, terms: Terms | None = None, refused: Sequence[Refused] = ()) -> Comparison:
    return compare_rows(rows, refused, terms or Terms(PriceBook("USD"), Wish()), len(rows))


# --- evidence ----------------------------------------------------------------------------------------------


def test_a_measured_row_is_evidence_with_all_of_its_figures(made: RankedRow) -> None:
    row = on(made, NAME, days=2.0, setting=("kernels", "tf32"))
    two = replace(row, machine=replace(row.machine, devices=2))
    (found,) = comparison._evidence([[two]])
    assert found == MeasuredRow(
        model=row.model,
        family=row.family,
        gpu=h100(),
        gpus=2,
        precision=row.precision,
        tf32=True,
        flops=row.training_flops or 0,
        days=2.0,
        peak_bytes=row.best.peak_bytes,
    )
    (without,) = comparison._evidence([[on(made, NAME, setting=("kernels",))]])
    assert not without.tf32


@pytest.mark.parametrize(
    "change",
    [
        {"complete": False},
        {"marks": (MARK,)},
        {"training_flops": None},
        {"name": "Accelerator 9000"},
        {"kind": "cpu"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_reason_by_itself_keeps_a_row_from_being_evidence(
    made: RankedRow, change: dict[str, Any]
) -> None:
    assert comparison._evidence([[on(made, NAME)]])
    assert comparison._evidence([[on(made, **{"name": NAME, **change})]]) == []


def test_the_fastest_row_of_a_recipe_on_each_machine_is_evidence(made: RankedRow) -> None:
    rows = [on(made, NAME, days=days) for days in (3.0, 1.0, 2.0)]
    other = on(made, "NVIDIA H200", days=4.0)
    recipe = replace(on(made, NAME, days=5.0), conditions=(("batch", "7"),))
    found = comparison._evidence([[*rows, other, recipe]])
    assert [(one.gpu.name, one.days) for one in found] == [
        (h100().name, 1.0), ("NVIDIA H200", 4.0), (h100().name, 5.0)
    ]  # fmt: skip


def test_a_row_that_is_not_trusted_is_evidence_only_without_a_trusted_one(made: RankedRow) -> None:
    fast, slow = on(made, NAME, days=1.0, trusted=False), on(made, NAME, days=2.0, trusted=True)
    assert [one.days for one in comparison._evidence([[fast, slow]])] == [2.0]
    assert [one.days for one in comparison._evidence([[fast]])] == [1.0]


def unusable(*rows: Row) -> str | None:
    return comparison._unusable(rows).get("gpt_neox")


def test_why_rows_of_a_family_are_no_evidence(made: RankedRow) -> None:
    partial = on(made, NAME, complete=False)
    slow = on(made, NAME, slowed=SLOWED, marks=(MARK,))
    marked = on(made, NAME, marks=(MARK, replace(MARK, kind="busy")))  # type: ignore[arg-type]
    unknown, strange = on(made, "Accelerator 9000"), on(made, "Accelerator 8000")
    incomplete = "no run of gpt_neox is complete: bench run --resume continues one"
    assert unusable(partial) == incomplete
    assert unusable(unknown, strange, unknown) == (
        "Accelerator 9000, Accelerator 8000: no vendor's peak is known to estimate from"
    )
    assert unusable(unknown, partial) == incomplete
    assert unusable(slow, slow) == "in every run of gpt_neox a GPU was slowed down"
    assert unusable(slow, marked) == "every run of gpt_neox is marked: busy, hot"
    assert unusable(slow, marked, partial) == incomplete
    assert unusable() is None


# --- estimates ---------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Note what the rule and the predictor are asked for each estimate; the predictor has none."""
    calls: list[dict[str, Any]] = []

    def rule(gpu: GpuModel, gpus: int, family: str, precision: str, flops: float, evidence: Any) -> Guess:
        calls.append({"of": (family, precision), "flops": flops, "evidence": evidence})
        return Guess(gpu.name, gpus, 1.0, None, None, None, 0, "the rule")

    def predictor(gpu: GpuModel, gpus: int, at_peak_days: float, rows: list[RankedRow]) -> None:
        calls[-1] |= {"machine": (gpu, gpus), "at peak": at_peak_days, "rows": rows}

    monkeypatch.setattr(comparison, "extrapolate", rule)
    monkeypatch.setattr(comparison, "predicted_estimate", predictor)
    return calls


def guesses(rows: Sequence[Row], reasons: dict[str, str] | None = None) -> tuple[Guess, ...]:
    terms = Terms(PriceBook("USD"), Wish(), wanted=((h100(), 8),))
    return comparison._guesses(rows[0].recipe, rows, terms, [], reasons or {})


def test_an_estimate_has_the_fewest_operations_of_the_recipe_s_rows(
    made: RankedRow, asked: list[dict[str, Any]]
) -> None:
    most, least = (
        on(made, NAME, days=days, training_flops=flops) for days, flops in ((1.0, 9.0), (2.0, 5.0))
    )
    equal = on(made, NAME, days=3.0, training_flops=5.0, family="other")
    unknown = on(made, NAME, days=4.0, training_flops=None)
    other = replace(on(made, NAME, days=5.0, training_flops=1.0), conditions=(("batch", "7"),))
    (guess,) = guesses([most, least, equal, unknown, other])
    assert guess.basis == "the rule"
    (call,) = asked
    assert (call["of"], call["flops"]) == (("gpt_neox", made.precision), 5.0)
    assert (call["machine"], call["at peak"]) == ((h100(), 8), 1.0)
    assert call["rows"] == [most, least, equal, unknown]


def test_the_predictor_gets_whole_rows_of_the_recipe_without_marks(
    made: RankedRow, asked: list[dict[str, Any]]
) -> None:
    good = on(made, NAME)
    partial, marked = on(made, NAME, complete=False), on(made, NAME, marks=(MARK,))
    other = replace(good, conditions=(("batch", "7"),))
    guesses([good, partial, marked, other])
    assert asked[0]["rows"] == [good]


def test_without_counted_operations_of_the_recipe_nothing_is_estimated(
    made: RankedRow, asked: list[dict[str, Any]]
) -> None:
    assert guesses([on(made, NAME, training_flops=None)]) == ()
    assert comparison._guesses((("batch", "7"),), [made], Terms(PriceBook("USD"), Wish()), [], {}) == ()
    assert asked == []


def test_an_estimate_without_days_says_why_its_family_has_no_evidence(
    made: RankedRow, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guesses([made], {"gpt_neox": "why"})[0].basis == "why"
    assert guesses([made], {"other": "why"})[0].basis == "the rule"
    found = Guess("x", 8, 1.0, 2.0, None, None, 0, "a row")
    monkeypatch.setattr(comparison, "predicted_estimate", lambda *_: found)
    assert guesses([made], {"gpt_neox": "why"}) == (found,)


def test_each_recipe_is_estimated_once_in_its_first_part(
    made: RankedRow, asked: list[dict[str, Any]]
) -> None:
    """The assurance level is a condition, and not one of the recipe."""
    terms = Terms(PriceBook("USD"), Wish(), wanted=((h100(), 8),))
    others = tuple(pair for pair in made.conditions if pair[0] != "assurance level")
    one = replace(on(made, NAME, days=1.0), conditions=(*others, ("assurance level", "self")))
    two = replace(on(made, NAME, days=2.0), conditions=(*others, ("assurance level", "operator")))
    batch = replace(on(made, NAME, days=3.0), conditions=(("batch", "7"),))
    parts = compared(one, two, batch, terms=terms).parts
    assert [len(part.guesses) for part in parts].count(1) == 2
    assert [len(part.guesses) for part in parts if part.recipe == one.recipe] == [1, 0]
    assert [part.number for part in parts] == [1, 2, 3]
    as_one = compared(one, two, batch, terms=replace(terms, rank_all=True)).parts
    assert [len(part.entries) for part in as_one] == [3]
    assert asked[0]["evidence"] != []


# --- parts -------------------------------------------------------------------------------------------------


def part_of(found: Comparison) -> ModelPart:
    (part,) = found.parts
    return part


def test_a_part_is_named_by_its_model_and_number(made: RankedRow) -> None:
    part = part_of(compared(made))
    assert (part.number, part.name, part.title) == (1, part.model, part.model)
    second = replace(part, number=2, differs_in=("batch 7, not 8", "steps 1, not 2"))
    assert second.name == f"{part.model}-group-2"
    assert second.title == f"{part.model}: batch 7, not 8, steps 1, not 2"
    bare = ModelPart("m", "tokens", (), (), ())
    assert (bare.number, bare.nothing_in_budget, bare.nothing_in_time) == (1, False, False)


def test_a_row_gives_way_only_to_a_more_trusted_one_of_its_own_machine(made: RankedRow) -> None:
    own = replace(on(made, NAME), trusted=True)
    part = part_of(compared(own))
    assert part.not_replaced_by(replace(own, trusted=False)) is not None
    assert part.not_replaced_by(own) is None
    assert part.not_replaced_by(replace(own, level="operator")) is None
    assert part.not_replaced_by(replace(on(made, "NVIDIA H200"), trusted=False)) is None


def test_documents_leave_out_what_only_the_computation_needs(made: RankedRow) -> None:
    document = to_json(compared(made))
    (entry,) = document["parts"][0]["entries"]
    assert "machine" not in entry
    internal = {"episodes", "trained", "step_times", "received_at", "statement_sha256"}
    assert not internal & entry["row"].keys()
    assert document["schema"] == "bench/comparison/v1"
    assert entry["row"].keys() >= {"watts", "telemetry", "close", "samples_sha256", "marks", "products"}


def test_a_comparison_has_the_terms_of_its_question(made: RankedRow) -> None:
    book, wish = PriceBook("EUR", life_years=3.0), Wish(budget=5.0)
    terms = Terms(book, wish, utilisation=0.5, own_prices=True, energy=EnergyFactors(1.5, 400.0))
    refused = [Refused("b", "y", 4), Refused("b", "x", 4), Refused("a", "z", 4)]
    found = compared(made, terms=terms, refused=refused)
    assert (found.currency, found.life_years, found.utilisation) == ("EUR", 3.0, 0.5)
    assert (found.wish, found.bundles, found.own_prices, found.energy) == (wish, 1, True, terms.energy)
    assert found.life_days == pytest.approx(3 * 365.25, rel=1e-3)
    assert [(one.path, one.reason) for one in found.refused] == [("a", "z"), ("b", "x"), ("b", "y")]
    assert found.quotes == ()
    assert not compared(made).own_prices


def test_an_entry_has_the_energy_of_its_row_by_the_user_s_factors(made: RankedRow) -> None:
    row = replace(made, watts=500.0)
    terms = Terms(PriceBook("USD"), Wish(deadline_days=1e9), energy=EnergyFactors(1.5, 400.0))
    (entry,) = part_of(compared(row, terms=terms)).entries
    assert entry.row.run_id == row.run_id
    kwh = 500.0 * row.days.value * 24 / 1000
    assert entry.kwh == pytest.approx(kwh)
    assert entry.node_kwh == pytest.approx(1.5 * kwh)
    assert entry.co2_kg == pytest.approx(1.5 * kwh * 0.4)
    assert entry.in_time == "yes"
    assert entry.on_another_day.value == row.days.value
    assert (entry.differs_in, entry.offers) == ((), ())
    assert entry.gaps != ()


def without_figure(row: RankedRow) -> Row:
    fields: Callable[[str], Any] = lambda name: getattr(row, name)  # noqa: E731
    names = Row.__dataclass_fields__
    return Row(**{name: fields(name) for name in names} | {"best": None, "run_id": "without"})


def test_rows_that_are_not_ranked_are_set_apart_with_their_reason(made: RankedRow) -> None:
    slower = on(made, NAME, days=made.days.value * 2, run_id="slower", path="slower.tar")
    slower = replace(slower, machine=made.machine, step_times=())
    part = part_of(compared(made, slower, without_figure(made)))
    assert [entry.row.run_id for entry in part.entries] == [made.run_id]
    assert [(apart.row.run_id, apart.reasons[0].partition(":")[0]) for apart in part.apart] == [
        ("without", "no figure"),
        ("slower", "0.0926 days"),
    ]
    assert "the same machine was faster in" in part.apart[1].reasons[0]
    assert part.rows == (part.entries[0].row, *(apart.row for apart in part.apart))
    (alone,) = compared(without_figure(made)).parts
    assert (alone.entries, alone.unit, alone.guesses) == ((), made.unit, ())


def test_rows_of_all_conditions_say_how_they_differ_if_they_are_ranked_together(made: RankedRow) -> None:
    other = replace(on(made, "NVIDIA H200"), conditions=(("batch", "7"),), started_at="0")
    terms = Terms(PriceBook("USD"), Wish(), rank_all=True)
    part = part_of(compared(made, other, terms=terms))
    differs = {entry.row.machine.name: entry.differs_in for entry in part.entries}
    assert differs[made.machine.name] == () and differs["NVIDIA H200"] != ()
    first, second = compared(made, other).parts
    assert (first.differs_in, second.differs_in[0][:8]) == ((), "batch 7,")


def test_what_is_out_of_reach_is_said_of_the_part(made: RankedRow) -> None:
    """A run takes hours at 1,000 an hour for each GPU."""
    book = PriceBook("USD", rents=(Rent((NAME,), 1000.0, "2026-01-01", "a quote"),))
    for wish, found in (
        (Wish(deadline_days=1e-9), (False, True)),
        (Wish(deadline_days=1e9), (False, False)),
        (Wish(budget=1.0), (True, False)),
        (Wish(budget=1e9), (False, False)),
    ):
        part = part_of(compared(made, terms=Terms(book, wish)))
        assert (part.nothing_in_budget, part.nothing_in_time) == found
        assert [offer.kind for offer in part.every_offer] == ["rent"]
        assert compared(made, terms=Terms(book, wish)).quotes == part.entries[0].offers[0].quotes
