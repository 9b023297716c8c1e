"""`bench compare`: bundles in, a decision out. One that does not verify is named and left out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from bench.base.errors import BadInput, BenchError, printable
from bench.base.gpu_catalogue import GpuModel, find_gpu_model, gpu_models
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.verdict import RunContents, Verdict
from bench.node_check.check_results import CheckContents
from bench.node_check.fleet import Fleet, compare_fleet
from bench.node_check.fleet_member import FleetMember, fleet_member
from bench.node_check.judging.finding import EXITS
from bench.report.compare.compared_rows import ComparedRun, Row, gather, rows_of
from bench.report.compare.comparison import Comparison, Refused, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import load_prices
from bench.report.compare.prices import PriceBook
from bench.report.read_bundles import Lists, look_at_all


@dataclass(frozen=True, slots=True)
class CompareArguments:
    """The command's arguments."""

    bundles: tuple[Path, ...]
    lists: Lists | None = None
    prices: Path | None = None
    budget: float | None = None
    deadline_days: float | None = None
    runs: int = 1
    utilisation: float = 1.0
    rank_all: bool = False
    estimate: tuple[str, ...] = ()  # machines that were not measured: h100, 8xh100
    format: Literal["table", "json", "csv", "markdown"] = "table"
    settings: bool = False  # every setting of every bundle, too
    html: Path | None = None
    plots: Path | None = None
    png: bool = False


def compare(request: CompareArguments) -> int:
    comparison, fleet = gather_all(request)
    if fleet is not None and not comparison.parts:
        _refuse_of_training(request)
        code = _show_fleet(fleet, request)
        for refused in comparison.refused:
            print(refused.reason, file=sys.stderr)
        return max([code, *(refused.exit_code for refused in comparison.refused)])
    if fleet is not None:
        raise BadInput(
            "some are node checks and some are not", advice="compare them apart: bench compare checks/"
        )
    from bench.report.text.comparison_table import FORMATS  # tabulate is slow to import

    sys.stdout.write(printable(FORMATS[request.format](comparison).rstrip("\n")) + "\n")
    if request.format == "markdown" and request.settings:
        print("\n```text", end="")
        _print_settings(request)
        print("```")
    elif request.format == "table" and (request.settings or len(request.bundles) == comparison.bundles == 1):
        _print_settings(request)
    _write_files(comparison, request)
    for refused in comparison.refused:
        print(refused.reason, file=sys.stderr)
    return max((refused.exit_code for refused in comparison.refused), default=0)


def _refuse_of_training(request: CompareArguments) -> None:
    """Rather than ignore what a comparison of node checks has not."""
    asked = {
        "--prices": request.prices, "--budget-usd": request.budget, "--deadline": request.deadline_days,
        "--runs": request.runs != 1, "--utilisation": request.utilisation != 1,
        "--rank-all": request.rank_all, "--estimate": request.estimate,
        "--settings": request.settings, "--plots": request.plots,
    }  # fmt: skip
    if named := [option for option, value in asked.items() if value]:
        raise BadInput(
            f"{', '.join(named)}: of runs that trained, and these are node checks", advice="leave it out"
        )


def _write_files(comparison: Comparison, request: CompareArguments) -> None:
    if request.html is not None:
        from bench.report.pages.html import write_html

        write_html(request.html, comparison)
        print(f"report {request.html}", file=sys.stderr)
    if request.plots is not None:
        from bench.report.plots import all_plots
        from bench.report.plots.plot_files import write_plots

        written = write_plots(request.plots, all_plots(comparison), png=request.png)
        print(f"plots  {len(written)} files in {request.plots}", file=sys.stderr)


def collect(request: CompareArguments) -> Comparison:
    return gather_all(request)[0]


def gather_all(request: CompareArguments) -> tuple[Comparison, Fleet | None]:
    """What was measured, ranked; and what was checked, as a fleet."""
    terms = _terms(request)
    with_telemetry = request.html is not None or request.plots is not None
    rows: list[Row] = []
    checks: list[FleetMember] = []
    refused: list[Refused] = []
    bundles = 0
    found = look_at_all(request.bundles, request.lists, partial(gather, with_telemetry), _look)
    for path, seen in found:
        bundles += 1
        if isinstance(seen, BenchError):
            refused.append(Refused(str(path), str(seen), seen.exit_code))
        elif isinstance(seen, FleetMember):
            checks.append(seen)
        else:
            rows += seen
    comparison = compare_rows(rows, refused, terms, bundles - len(checks))
    return comparison, compare_fleet(checks) if checks else None


def _look(path: Path, verdict: Verdict[ComparedRun | CheckContents]) -> tuple[Row, ...] | FleetMember:
    contents = verdict.contents
    if isinstance(contents, CheckContents):
        return fleet_member(path, contents)
    return rows_of(path, verdict, contents)


def _show_fleet(fleet: Fleet, request: CompareArguments) -> int:
    from bench.report.pages import fleet_page as shown

    match request.format:
        case "json":
            sys.stdout.write(pretty_json(to_json(fleet)).decode())
        case "csv":
            sys.stdout.write(printable(shown.as_csv(fleet)))
        case "markdown":
            print(printable(shown.as_markdown(fleet)))
        case _:
            print(printable(shown.table(fleet)))
    if request.html is not None:
        shown.write_fleet_html(request.html, fleet)
        print(f"report {request.html}", file=sys.stderr)
    return EXITS[fleet.verdict]


def _terms(request: CompareArguments) -> Terms:
    if request.png and request.plots is None:
        raise BadInput("--png without --plots", advice="--plots DIR says where the plots go")
    if request.settings and request.format == "csv":
        raise BadInput("--settings: CSV is a row a machine", advice="--json has every setting")
    book = load_prices(request.prices)
    wish = Wish(_budget(request.budget, book), request.deadline_days, request.runs)
    wanted = tuple(map(_wanted, request.estimate))
    own_prices = request.prices is not None
    return Terms(book, wish, request.utilisation, request.rank_all, wanted, own_prices)


def _budget(dollars: float | None, book: PriceBook) -> float | None:
    """In the currency of the prices."""
    if dollars is None:
        return None
    if (rate := book.rate("USD")) is not None:
        return dollars * rate
    raise BadInput(
        f"--budget-usd, but the prices are in {book.currency}",
        advice='add USD to their "exchange": what one dollar is worth',
    )


def _wanted(text: str) -> tuple[GpuModel, int]:
    """The machine that 8xh100, or h100, names."""
    count, times, name = text.partition("x")
    if not (times and count.isdecimal()):
        count, name = "1", text
    gpu = find_gpu_model(name)
    if gpu is None or int(count) < 1:
        names = ", ".join(known.name for known in gpu_models())
        raise BadInput(f"--estimate {text}: no such machine", advice=f"8xh100, say; known: {names}")
    return gpu, int(count)


def _print_settings(request: CompareArguments) -> None:
    from bench.report.read_bundles import check_all
    from bench.report.text.run_table import section

    for path, verdict in check_all(request.bundles, request.lists):
        if not isinstance(verdict, BenchError) and isinstance(verdict.contents, RunContents):
            print(printable(f"\n{section(path, verdict, verdict.contents)}"))
