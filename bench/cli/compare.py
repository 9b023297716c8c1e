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

from bench.base.errors import BadInput
from bench.base.names import RentKind
from bench.base.strict_json import to_json
from bench.base.terminal import print_json
from bench.bundle.verdict import RunContents
from bench.cli.combinations import chosen_columns, refuse_two_formats, refuse_without_plots
from bench.cli.stdio import show
from bench.library.compare import ComparedBundles, ForRunsOnly
from bench.library.compare import compare as compare_bundles
from bench.node_check.fleet import Fleet
from bench.node_check.judging.finding import EXITS
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.records.text import count_text
from bench.report.compare.comparison import Comparison
from bench.report.read_bundles import Lists, distinct_bundles, look_at_all, own_process


@dataclass(frozen=True, slots=True)
class CompareArguments:
    """The options of `bench compare`, with the defaults of the command."""

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
        """The columns that --columns names, of the table of machines and of the table of settings."""
        from bench.report.text.machine_rows import COLUMN_NAMES as OF_MACHINES
        from bench.report.text.run_table import COLUMN_NAMES as OF_SETTINGS

        return chosen_columns(self.columns, dict.fromkeys((*OF_MACHINES, *OF_SETTINGS)))

    @property
    def output(self) -> Literal["table", "json", "csv", "markdown"]:
        """The format from --format and --json; BadInput if they disagree."""
        refuse_two_formats(self.format, as_json=self.as_json)
        return "json" if self.as_json else self.format or "table"

    @property
    def lists(self) -> Lists:
        """The lists of keys that --trust and --revoked name."""
        return Lists(self.trust, self.revoked)


def compare(request: CompareArguments) -> int:
    """Print one comparison; return the highest of the exit codes of its verdict and of refused bundles."""
    own_process()
    output = request.output  # refuses options that disagree, before any bundle is read
    _refuse_ignored_options(request)
    compared = _compared(request)
    compared.require_one_kind()
    comparison, fleet = compared.runs, compared.fleet
    code = _show_runs(comparison, output, request) if fleet is None else _show_fleet(fleet, request)
    for refused in comparison.refused:
        print(refused.reason, file=sys.stderr)
    return max([code, *(refused.exit_code for refused in comparison.refused)])


def _show_runs(comparison: Comparison, output: str, request: CompareArguments) -> int:
    from bench.report.text.comparison_table import FORMATS, table  # tabulate is slow to import
    from bench.report.text.escapes import markdown_code

    columns, one_bundle = request.shown_columns, len(request.bundles) == comparison.bundles == 1
    text = table(comparison, columns) if output == "table" else FORMATS[output](comparison)
    if output == "table":
        show(text.rstrip("\n"))
    else:
        print(text.rstrip("\n"))
    if output == "markdown" and request.settings:
        print(f"\n{markdown_code(_settings(comparison, request))}")
    elif output == "table" and comparison.parts and (request.settings or one_bundle):
        show(f"\n{_settings(comparison, request)}")
    if request.html is not None:
        from bench.report.pages.html import write_html

        write_html(request.html, comparison)
        print(f"report {request.html}", file=sys.stderr)
    if request.plots is not None:
        from bench.report.plots import all_plots
        from bench.report.plots.plot_files import write_plots

        written = write_plots(request.plots, all_plots(comparison), png=request.png)
        print(f"plots  {count_text(len(written), 'file')} in {request.plots}", file=sys.stderr)
    return 0


def _refuse_ignored_options(request: CompareArguments) -> None:
    """Refuse options that the chosen format would ignore, and columns that no table has."""
    if request.shown_columns is not None and request.output != "table":
        found = f"--columns with {request.output}, which has every column"
        raise BadInput(found, advice="leave one of them out")
    refuse_without_plots(request.plots, "--png", request.png)
    if request.settings and request.output == "csv":
        raise BadInput(
            "--settings with CSV, which has one row per machine", advice="--json has every setting"
        )


def collect(request: CompareArguments) -> Comparison:
    """Compare the training runs among the bundles of a request."""
    return _compared(request).runs


def _compared(request: CompareArguments) -> ComparedBundles:
    """Compare the bundles; BadInput for node checks with options that are for training runs only."""
    own = {"--settings": request.settings, "--plots": request.plots, "--columns": request.columns}
    given = [option for option, value in own.items() if value]
    try:
        compared = compare_bundles(
            request.bundles,
            trust=request.trust,
            revoked=request.revoked,
            prices=request.prices,
            rent=request.rent,
            budget_usd=request.budget,
            deadline=request.deadline_days,
            runs=request.runs,
            utilisation=request.utilisation,
            node_overhead=request.node_overhead,
            gco2_per_kwh=request.gco2_per_kwh,
            rank_all=request.rank_all,
            estimate=request.estimate,
            telemetry=request.html is not None or request.plots is not None,
        )
    except ForRunsOnly as error:
        raise ForRunsOnly([*error.options, *given]) from None
    if compared.only_checks and given:
        raise ForRunsOnly(given)
    return compared


def _show_fleet(fleet: Fleet, request: CompareArguments) -> int:
    from bench.report.text import fleet_text

    match request.output:
        case "json":
            print_json(to_json(fleet))
        case "csv":
            sys.stdout.write(fleet_text.as_csv(fleet))
        case "markdown":
            print(fleet_text.as_markdown(fleet))
        case _:
            show(fleet_text.table(fleet))
    if request.html is not None:
        from bench.report.pages.fleet_page import write_fleet_html

        write_fleet_html(request.html, fleet)
        print(f"report {request.html}", file=sys.stderr)
    return EXITS[fleet.verdict]


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
    """Return the sort key of a bundle's block, and the block, which is empty for a node check."""
    from bench.report.text.run_table import section

    contents = verdict.contents
    text = section(path, verdict, contents, columns) if isinstance(contents, RunContents) else ""
    return verdict.started_at, verdict.run_id, verdict.statement_sha256, text
