"""`bench.compare`: rank training runs by time and cost, or compare node checks as a fleet.

A bundle that fails verification is reported in the result, and left out of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.base import quantities
from bench.base.errors import BadInput, BenchError
from bench.base.names import RentKind
from bench.base.strict_json import to_json
from bench.bundle.verdict import Verdict
from bench.library.budget import budget_of
from bench.library.energy import energy_of
from bench.library.given import AnyPath, AnyPaths, choice, path_of, paths_of, quantity, share, texts_of
from bench.library.machines import machine_named
from bench.node_check.check_results import CheckContents
from bench.node_check.fleet import Fleet, FleetMember, compare_fleet, fleet_member
from bench.report.compare.compared_rows import ComparedRun, Row, gather, rows_of
from bench.report.compare.comparison import Comparison, Refused, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import load_prices
from bench.report.read_bundles import Lists, distinct_bundles, look_at_all


@dataclass(frozen=True, slots=True)
class ComparedBundles:
    """Training runs as a comparison, and node checks as a fleet."""

    runs: Comparison  # without parts if all bundles are node checks
    fleet: Fleet | None  # None: there are no node checks

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The bundles that did not verify, and are not compared."""
        return self.runs.refused

    @property
    def only_checks(self) -> bool:
        """Whether all bundles are of node checks."""
        return self.fleet is not None and not self.runs.parts

    def require_one_kind(self) -> None:
        """Raise BadInput if there are training runs and node checks: the command prints one comparison."""
        if self.fleet is not None and self.runs.parts:
            advice = "compare node checks in a command of their own: bench compare checks/"
            raise BadInput("some bundles are node checks and some are not", advice=advice)

    def to_json(self) -> object:
        """Return the document of `bench compare --json`, of the runs or of the fleet; BadInput for both."""
        self.require_one_kind()
        return to_json(self.runs if self.fleet is None else self.fleet)


class ForRunsOnly(BadInput):
    """The error for options of training runs that were given for node checks, which would ignore them."""

    def __init__(self, options: Sequence[str]) -> None:
        message = f"{', '.join(options)}: for training runs only, and these are node checks"
        super().__init__(message, advice="leave it out")
        self.options = options


def compare(
    bundles: AnyPaths,
    *,
    trust: AnyPath | None = None,
    revoked: AnyPath | None = None,
    prices: AnyPath | None = None,
    rent: RentKind = "on-demand",
    budget_usd: float | str | None = None,
    deadline: float | str | None = None,
    runs: int = 1,
    utilisation: float | str = 1.0,
    node_overhead: float | str | None = None,
    gco2_per_kwh: float | str | None = None,
    rank_all: bool = False,
    estimate: str | Iterable[str] = (),
    telemetry: bool = False,
) -> ComparedBundles:
    """Verify bundles, and rank the machines by days and cost for each model, or node checks by health.

    `bundles`           files, folders and patterns, one or several
    `trust`, `revoked`  lists of keys, as for `bench.verify`
    `prices`            a file of your quotes, which take precedence over the shipped ones
    `rent`              the kind of rent that counts: "on-demand", "spot" or "reserved"
    `budget_usd`        your budget in US dollars
    `deadline`          the longest time that a run may take: days, or a text such as "36h", "2027-01-31"
    `runs`              how many runs the budget is for
    `utilisation`       share of its lifetime in which an owned machine trains: 0.85, or "85%"
    `node_overhead`     kWh of the whole node for each kWh of its GPUs
    `gco2_per_kwh`      grams of CO2 for each kWh
    `rank_all`          rank all bundles of a model together, and mark what differs
    `estimate`          machines to extrapolate to that were not measured, such as "8xh100"
    `telemetry`         keep each run's telemetry in its rows, for plots

    Raises BadInput for an option that makes no sense, also if all bundles are node checks and it is for runs.
    A refused bundle is a value: `refused` of the result says why.

    >>> compared = bench.compare("results/hour-h200/decided.tar", deadline="14d")
    >>> part = next(part for part in compared.runs.parts if part.model == "pythia-160m")
    >>> best = part.entries[0]
    >>> best.row.machine.name, best.place.rank, best.in_time
    ('NVIDIA H200', 1, 'yes')
    >>> print(f"{best.row.best.days.value:.2f} days with {best.row.best.label}")
    7.15 days with free-lunch + half-weights
    """
    choice("rent", rent, RentKind)
    book = load_prices(path_of(prices)).renting(rent)
    days = None if deadline is None else quantity("deadline", deadline, quantities.deadline)
    wish = Wish(budget_of(budget_usd, book), days, quantity("runs", runs, quantities.count))
    used = share("utilisation", utilisation, quantities.percent)
    machines = tuple(machine_named(text, "--estimate") for text in texts_of(estimate))
    energy = energy_of(node_overhead, gco2_per_kwh)
    terms = Terms(book, wish, used, rank_all, machines, prices is not None, energy)
    lists = Lists(path_of(trust), path_of(revoked))
    compared = _gather(paths_of(bundles), lists, terms, with_telemetry=telemetry)
    if compared.only_checks and (options := _for_runs(terms)):
        raise ForRunsOnly(options)
    return compared


def _for_runs(terms: Terms) -> list[str]:
    """Return the options that were given and that mean nothing for node checks."""
    given = {
        "--prices": terms.own_prices,
        "--budget-usd": terms.wish.budget,
        "--deadline": terms.wish.deadline_days,
        "--runs": terms.wish.runs != 1,
        "--utilisation": terms.utilisation != 1,
        "--node-overhead": terms.energy.node_overhead,
        "--gco2-per-kwh": terms.energy.grams_co2_per_kwh,
        "--rank-all": terms.rank_all,
        "--estimate": terms.wanted,
    }
    return [option for option, value in given.items() if value]


def _gather(paths: Iterable[Path], lists: Lists, terms: Terms, *, with_telemetry: bool) -> ComparedBundles:
    """Rank the training runs; compare the node checks as a fleet, if there are any."""
    rows: list[Row] = []
    checks: list[FleetMember] = []
    refused: list[Refused] = []
    bundles = 0
    for path, contents in look_at_all(
        distinct_bundles(paths), lists, partial(gather, with_telemetry=with_telemetry), _look
    ):
        bundles += 1
        if isinstance(contents, BenchError):
            refused.append(Refused(str(path), str(contents), contents.exit_code))
        elif isinstance(contents, FleetMember):
            checks.append(contents)
        else:
            rows += contents
    comparison = compare_rows(rows, refused, terms, bundles - len(checks))
    return ComparedBundles(comparison, compare_fleet(checks) if checks else None)


def _look(path: Path, verdict: Verdict[ComparedRun | CheckContents]) -> tuple[Row, ...] | FleetMember:
    contents = verdict.contents
    if isinstance(contents, CheckContents):
        return fleet_member(path, verdict, contents)
    return rows_of(path, verdict, contents)
