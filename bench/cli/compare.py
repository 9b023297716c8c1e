"""`bench compare`: rank verified bundles by time and cost, or compare node checks as a fleet.

A bundle that fails verification is reported and left out of the comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from bench.base.errors import BadInput, BenchError
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.verdict import RunContents, Verdict
from bench.cli.combinations import chosen_columns, refuse_two_formats, refuse_without_plots
from bench.cli.machines import machine_named
from bench.cli.stdio import show
from bench.node_check.check_results import CheckContents
from bench.node_check.fleet import Fleet, FleetMember, compare_fleet, fleet_member
from bench.node_check.judging.finding import EXITS
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.report.compare.compared_rows import ComparedRun, Row, gather, rows_of
from bench.report.compare.comparison import Comparison, Refused, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import load_prices
from bench.report.compare.prices import PriceBook, RentKind
from bench.report.read_bundles import Lists, distinct_bundles, look_at_all


@dataclass(frozen=True, slots=True)
class CompareArguments:
    bundles: tuple[Path, ...]
    trust: Path | None = None
    revoked: Path | None = None
    prices: Path | None = None
    rent: RentKind = "on-demand"
    budget: float | None = None  # US dollars
    deadline_days: float | None = None
    runs: int = 1
    utilisation: float = 1.0  # fraction of its lifetime in which an owned machine trains
    node_overhead: float | None = None
    gco2_per_kwh: float | None = None
    rank_all: bool = False
    estimate: tuple[str, ...] = ()  # machines that were not measured: h100, 8xh100
    format: Literal["table", "json", "csv", "markdown"] | None = None
    as_json: bool = False
    settings: bool = False
    html: Path | None = None
    plots: Path | None = None
    png: bool = False
    columns: tuple[str, ...] | None = None

    @property
    def shown_columns(self) -> Sequence[str] | None:
        """The columns of --columns, of the table of machines and of that of settings."""
        from bench.report.text.machine_rows import COLUMN_NAMES as OF_MACHINES
        from bench.report.text.run_table import COLUMN_NAMES as OF_SETTINGS

        return chosen_columns(self.columns, dict.fromkeys((*OF_MACHINES, *OF_SETTINGS)))

    @property
    def output(self) -> Literal["table", "json", "csv", "markdown"]:
        """The format from --format and --json; BadInput if they disagree."""
        refuse_two_formats(self.as_json, self.format)
        return "json" if self.as_json else self.format or "table"

    @property
    def lists(self) -> Lists:
        return Lists(self.trust, self.revoked)


def compare(request: CompareArguments) -> int:
    output = request.output  # refuses options that disagree, before any bundle is read
    _refuse_senseless_columns(request)
    comparison, fleet = gather_all(request)
    if fleet is None:
        code = _show_runs(comparison, output, request)
    elif comparison.parts:
        advice = "compare node checks in a command of their own: bench compare checks/"
        raise BadInput("some bundles are node checks and some are not", advice=advice)
    else:
        _refuse_options_of_training(request)
        code = _show_fleet(fleet, request)
    for refused in comparison.refused:
        print(refused.reason, file=sys.stderr)
    return max([code, *(refused.exit_code for refused in comparison.refused)])


def _show_runs(comparison: Comparison, output: str, request: CompareArguments) -> int:
    from bench.report.text.comparison_table import FORMATS, table  # tabulate is slow to import
    from bench.report.text.escapes import markdown_code

    columns = request.shown_columns
    text = table(comparison, columns) if output == "table" else FORMATS[output](comparison)
    if output == "table":
        show(text.rstrip("\n"))
    else:
        print(text.rstrip("\n"))
    if output == "markdown" and request.settings:
        print(f"\n{markdown_code(_settings(comparison, request))}")
    elif output == "table" and (request.settings or len(request.bundles) == comparison.bundles == 1):
        show(f"\n{_settings(comparison, request)}")
    if request.html is not None:
        from bench.report.pages.html import write_html

        write_html(request.html, comparison)
        print(f"report {request.html}", file=sys.stderr)
    if request.plots is not None:
        from bench.report.plots import all_plots
        from bench.report.plots.plot_files import write_plots

        written = write_plots(request.plots, all_plots(comparison), png=request.png)
        print(f"plots  {len(written)} files in {request.plots}", file=sys.stderr)
    return 0


def _refuse_senseless_columns(request: CompareArguments) -> None:
    """Refuse --columns beside a format that has all columns, and columns that no table has."""
    if request.shown_columns is not None and request.output != "table":
        found = f"--columns with {request.output}, which has every column"
        raise BadInput(found, advice="leave one of them out")


def _refuse_options_of_training(request: CompareArguments) -> None:
    """Refuse options for training runs, which a comparison of node checks would ignore."""
    given = {
        "--prices": request.prices,
        "--budget-usd": request.budget,
        "--deadline": request.deadline_days,
        "--runs": request.runs != 1,
        "--utilisation": request.utilisation != 1,
        "--node-overhead": request.node_overhead,
        "--gco2-per-kwh": request.gco2_per_kwh,
        "--rank-all": request.rank_all,
        "--estimate": request.estimate,
        "--settings": request.settings,
        "--plots": request.plots,
        "--columns": request.columns,
    }
    if options := [option for option, value in given.items() if value]:
        raise BadInput(
            f"{', '.join(options)}: for training runs only, and these are node checks", advice="leave it out"
        )


def collect(request: CompareArguments) -> Comparison:
    return gather_all(request)[0]


def gather_all(request: CompareArguments) -> tuple[Comparison, Fleet | None]:
    """Rank the training runs; compare the node checks as a fleet, if there are any."""
    terms = _terms(request)
    with_telemetry = request.html is not None or request.plots is not None
    rows: list[Row] = []
    checks: list[FleetMember] = []
    refused: list[Refused] = []
    bundles = 0
    paths = distinct_bundles(request.bundles)
    looks = look_at_all(paths, request.lists, partial(gather, with_telemetry), _look)
    for path, contents in looks:
        bundles += 1
        if isinstance(contents, BenchError):
            refused.append(Refused(str(path), str(contents), contents.exit_code))
        elif isinstance(contents, FleetMember):
            checks.append(contents)
        else:
            rows += contents
    comparison = compare_rows(rows, refused, terms, bundles - len(checks))
    return comparison, compare_fleet(checks) if checks else None


def _look(path: Path, verdict: Verdict[ComparedRun | CheckContents]) -> tuple[Row, ...] | FleetMember:
    contents = verdict.contents
    if isinstance(contents, CheckContents):
        return fleet_member(path, verdict, contents)
    return rows_of(path, verdict, contents)


def _show_fleet(fleet: Fleet, request: CompareArguments) -> int:
    from bench.report.pages import fleet_page

    match request.output:
        case "json":
            sys.stdout.write(pretty_json(to_json(fleet)).decode())
        case "csv":
            sys.stdout.write(fleet_page.as_csv(fleet))
        case "markdown":
            print(fleet_page.as_markdown(fleet))
        case _:
            show(fleet_page.table(fleet))
    if request.html is not None:
        fleet_page.write_fleet_html(request.html, fleet)
        print(f"report {request.html}", file=sys.stderr)
    return EXITS[fleet.verdict]


def _terms(request: CompareArguments) -> Terms:
    refuse_without_plots(request.plots, "--png", request.png)
    if request.settings and request.output == "csv":
        raise BadInput(
            "--settings with CSV, which has one row per machine", advice="--json has every setting"
        )
    book = load_prices(request.prices).renting(request.rent)
    wish = Wish(_budget(request.budget, book), request.deadline_days, request.runs)
    machines = tuple(machine_named(text, "--estimate") for text in request.estimate)
    own_prices = request.prices is not None
    energy = EnergyFactors(request.node_overhead, request.gco2_per_kwh)
    return Terms(book, wish, request.utilisation, request.rank_all, machines, own_prices, energy)


def _budget(dollars: float | None, book: PriceBook) -> float | None:
    """Convert dollars to the currency of the price book; BadInput if it has no exchange rate."""
    if dollars is None:
        return None
    if (rate := book.rate("USD")) is not None:
        return dollars * rate
    advice = 'add USD, the value of one dollar, to "exchange" in the price file'
    raise BadInput(f"--budget-usd, but the prices are in {book.currency}", advice=advice)


def _settings(comparison: Comparison, request: CompareArguments) -> str:
    """Return a block for each bundle that is compared, the oldest first, with every setting that it tried."""
    refused = {refused.path for refused in comparison.refused}
    of_columns = partial(_settings_of, request.shown_columns)
    looks = look_at_all(distinct_bundles(request.bundles), request.lists, recompute, of_columns)
    found = [
        block if isinstance(block, tuple) else ("", "", "", str(block))
        for path, block in looks
        if str(path) not in refused
    ]
    return "\n\n".join(text for *_, text in sorted(found) if text)


def _settings_of(columns: Sequence[str] | None, path: Path, verdict: AnyVerdict) -> tuple[str, str, str, str]:
    """Return what orders the blocks, and the block; the block is empty for a node check."""
    from bench.report.text.run_table import section

    contents = verdict.contents
    text = section(path, verdict, contents, columns) if isinstance(contents, RunContents) else ""
    return verdict.started_at, verdict.run_id, verdict.statement_sha256, text
