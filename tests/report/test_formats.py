"""Four formats of one comparison contain the same numbers; also tests of the command."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from bench.bundle.pack import pack
from bench.bundle.statement import Predicate
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.records.estimate import Interval
from bench.records.text import figures, interval_text, money_text
from bench.records.trial import Crashed
from bench.report.compare.comparison import Comparison
from bench.report.pages.html import page
from bench.report.text.comparison_csv import CSV_COLUMNS, csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from tests.report.made import KEY, START, bundle, manifest, measured, texts

ROOT = Path(__file__).parents[2]
WIDE = (0.7, 1.0, 1.3, 1.0, 0.7, 1.3)
QUOTE = {"date": "2026-06-01", "source": "a quote"}


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Compare three machines, one of them in a separate group, with all kinds of prices; one ran twice."""
    prices = tmp_path / "prices.json"
    rents = [{"gpu": ["NVIDIA H100 80GB HBM3"], "price": 2.5, **QUOTE}]
    prices.write_text(
        json.dumps(
            {
                "schema": "bench/prices/v1",
                "currency": "USD",
                "rents": rents,
                "electricity": {"price": 0.2, **QUOTE},
            }
        )
    )
    capped = manifest(memory_cap_gib=24)
    paths = [
        bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", pass_seconds=700.0),
        bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", pass_seconds=400.0, gpus=2),
        bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", pass_seconds=700.0, of=capped),
        bundle(tmp_path / "d.tar", run_id="dddd", uuid="A", pass_seconds=700.0),
    ]
    return collect(CompareArguments(tuple(paths), prices=prices, budget=50_000.0, deadline_days=20.0, runs=3))


def test_every_text_of_the_table_is_in_the_markdown_too(comparison: Comparison) -> None:
    spelled = texts(comparison.parts[0], comparison)
    assert len(spelled) > 20
    for text in spelled:
        assert text in table(comparison)
        assert text in markdown(comparison)


def test_csv_and_json_contain_exactly_the_same_numbers(comparison: Comparison) -> None:
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(csv_text(comparison)))}
    document = json.loads(json_text(comparison))
    for part in document["parts"]:
        for entry in part["entries"]:
            row, best = rows[entry["row"]["run_id"]], entry["row"]["best"]
            assert (row["complete"], row["trusted"]) == ("true", "false")
            assert float(row["days"]) == best["days"]["value"]
            assert float(row["days_half_width"]) == best["days"]["half_width"]
            assert float(row["utilisation"]) == best["utilisation"]
            assert float(row["kwh"]) == entry["kwh"]
            offers = {offer["kind"]: offer for offer in entry["offers"]}
            assert float(row["buy_price"]) == offers["buy"]["price"]
            assert float(row["buy_run_cost"]) == offers["buy"]["run_cost"]
            assert float(row["rent_run_cost"]) == offers["rent"]["run_cost"]
            assert float(row["buy_spend"]) == offers["buy"]["spend"]
            assert row["buy_answers"] == "; ".join(offers["buy"]["marks"])
            assert row["rent_answers"] == "; ".join(offers["rent"]["marks"])
            assert row["rent_in_budget"] == json.dumps(offers["rent"]["in_budget"])
            assert row["in_time"] == entry["in_time"]
            assert int(row["break_even_runs"]) == offers["buy"]["break_even"]["runs"]
        for one in part["apart"]:
            assert rows[one["row"]["run_id"]]["not_compared"] == "; ".join(one["reasons"])
            assert rows[one["row"]["run_id"]]["rank"] == ""


@pytest.mark.parametrize(("rank_all", "column"), [(False, "group"), (True, "not_alike")])
def test_csv_says_which_conditions_differ_and_its_columns_are_documented(
    tmp_path: Path, rank_all: bool, column: str
) -> None:
    bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A")
    bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", started=START - 1, of=manifest(memory_cap_gib=24))
    text = csv_text(collect(CompareArguments((tmp_path,), rank_all=rank_all)))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["run"]: row[column] for row in rows} == {"aaaa": "", "bbbb": "memory cap 24 GiB, not none"}
    assert {row["searched"] for row in rows} == {"methods naive, micro-batch auto"}
    document = (ROOT / "docs/json.md").read_text()
    assert [name for name in CSV_COLUMNS if f"`{name}`" not in document] == []


def test_the_table_shows_the_numbers_of_the_json(comparison: Comparison) -> None:
    for entry in json.loads(json_text(comparison))["parts"][0]["entries"]:
        for offer in entry["offers"]:
            assert money_text(offer["price"], "USD") in table(comparison)
            assert money_text(offer["run_cost"], "USD") in table(comparison)


@pytest.mark.parametrize("form", [table, markdown, page])
def test_machines_of_one_kind_are_named_by_their_bundles(form: Any, tmp_path: Path) -> None:
    unsure = [((), 0.9), (("kernels",), 0.5), (("compile",), measured(0.49, WIDE))]
    for node in ("n01", "n02"):
        bundle(tmp_path / f"{node}.tar", run_id=f"run-{node}", uuid=node, settings=unsure)
    bundle(tmp_path / "n03.tar", run_id="run-n03", uuid="n03", gpus=2)
    text = form(collect(CompareArguments((tmp_path,))))
    for node in ("n01", "n02"):
        assert f"1x H100 80GB HBM3 ({node})" in text
        assert f"close: 1x H100 80GB HBM3 ({node}), compile is within 1%" in text
    assert "2x H100 80GB HBM3" in text
    assert "(n03)" not in text


def test_the_decision_is_printed_in_words(comparison: Comparison) -> None:
    text = table(comparison)
    assert "fastest in budget" in text
    assert "beats the cheapest rent from" in text
    asked = (
        "the fastest machine that $50,000 pays for, and the cheapest that is certain to do a run in 20 days"
    )
    assert text.startswith(f"asked: {asked}; for 3 runs of a model\nanswer: ")
    assert f"### Answer\n\nasked: {asked}; for 3 runs of a model\n\n" in markdown(comparison)
    assert f'<p class="asked">Asked: {asked}' in page(comparison)
    assert "not compared: " in text
    assert "\ntiny-gpt-neox: memory cap 24 GiB, not none" in text
    assert "quoted: $2.50 an hour for each NVIDIA H100 80GB HBM3: a quote, 2026-06-01" in text
    assert "quoted: $0.20 for a kWh: a quote, 2026-06-01" in text
    assert "price: of the whole machine with all its GPUs;" in text


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (127_500.0, "USD", "$127,500"),
        (99.999, "USD", "$100"),
        (14.836, "USD", "$14.84"),
        (0.00047, "USD", "$0.00047"),
        (0.0, "USD", "$0.00"),
        (640.2, "EUR", "EUR 640"),
    ],
)
def test_amounts_of_money_are_formatted(amount: float, currency: str, text: str) -> None:
    assert money_text(amount, currency) == text


def test_text_from_a_bundle_cannot_add_a_column(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a|b.tar", gpu="H|100", complete=False)
    blocks = markdown(collect(CompareArguments((path,)))).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) == 2  # the matrix, and the machines
    for rows in tables:
        assert len({row.replace("\\|", "").count("|") for row in rows}) == 1
        assert any("H\\|100" in row for row in rows)


@pytest.mark.parametrize("value", [1.23e-12, 1e-5, 0.0999999, 0.0])
def test_small_numbers_are_plain_decimals(value: float) -> None:
    assert float(figures(value)) == pytest.approx(value, rel=0.01)
    assert "e" not in figures(value)


def test_an_interval_without_a_width_is_a_plain_decimal_too() -> None:
    assert interval_text(Interval(123_456.0, 0.0)) == "123,500 ±0"


# The command


def run(capsys: Any, *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_real_bundles_make_a_table(capsys: Any) -> None:
    code, out, err = run(capsys, ROOT / "results/proof-h200")
    assert (code, err) == (0, "")
    for model in ("pythia-160m", "pythia-410m", "pythia-1b", "roberta-large", "convnext-xl", "vit-l"):
        assert model in out
    assert re.search(
        r"\s39\.2 ±1\.5\s", out
    )  # days of another H200: docs/accuracy.md has the run's own ±0.22
    assert "1x H200" in out


def test_one_bundle_shows_its_settings_too(capsys: Any) -> None:
    code, out, _ = run(capsys, ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar")
    assert code == 0
    assert "free-lunch + checkpointing + zero-3 + offload" in out


@pytest.mark.parametrize("form", [table, markdown])
def test_an_uncertain_fastest_setting_is_shown_with_its_runner_up(form: Any, tmp_path: Path) -> None:
    settings = [((), 0.9), (("kernels",), 0.5), (("compile",), measured(0.49, WIDE))]
    bundle(tmp_path / "a.tar", settings=settings)
    sure = bundle(tmp_path / "b.tar", settings=settings[:2], run_id="bbbb", uuid="other")
    comparison = collect(CompareArguments((tmp_path,)))
    (line,) = (line for line in form(comparison).splitlines() if "close: " in line)
    assert "compile is within 1% of the fastest measured with " in line
    assert "next: kernels at micro-batch 16, " in line
    assert line.endswith(" days")
    assert "close: " not in form(collect(CompareArguments((sure,))))


def test_a_bundle_that_does_not_verify_gives_exit_4(tmp_path: Path, capsys: Any) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"x" * 2000)
    code, out, err = run(capsys, bad, ROOT / "results/proof-h200/vit.tar", "--json")
    assert code == 4
    assert str(bad) in err
    document = json.loads(out)
    assert [part["model"] for part in document["parts"]] == ["vit-l"]
    assert document["refused"][0]["path"] == str(bad)


def test_json_names_the_file_that_was_changed(tmp_path: Path, capsys: Any) -> None:
    path = bundle(tmp_path / "a.tar")
    data = path.read_bytes()
    at = data.index(b'"bench_version": "0.1.0"')
    path.write_bytes(data[:at] + b'"bench_version": "9.1.0"' + data[at + 24 :])
    assert main(["verify", str(path), "--json"]) == 4
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["path"], found["where"]) == (str(path), "results.json")
    assert found["reason"] == "its sha256 is not the signed one: it was changed"


def test_the_last_line_about_many_bundles_says_whether_one_was_refused(tmp_path: Path, capsys: Any) -> None:
    good = [bundle(tmp_path / f"{name}.tar", run_id=name) for name in ("a", "b")]
    assert main(["verify", str(good[0])]) == 0
    assert "bundles: " not in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("\n2 bundles: 2 valid\n")
    good[0].write_bytes(b"x")
    assert main(["verify", str(tmp_path)]) == 4
    assert capsys.readouterr().out.endswith("\n2 bundles: 1 valid, 1 REFUSED\n")


def test_verify_says_what_the_bundle_is_about(tmp_path: Path, capsys: Any) -> None:
    """A reader with only this file learns the machine, the time, the models, and who states this."""
    path = bundle(tmp_path / "a.tar", settings=[((), 0.5), (("compile",), 1e-9)], gpus=2, micro_batch=2)
    impossible = bundle(tmp_path / "b.tar", settings=[((), 1e-9)])
    assert main(["verify", str(path), str(impossible)]) == 0
    out = capsys.readouterr().out
    assert "\nmachine    2x NVIDIA H100 80GB HBM3, driver 580 (as stated)\n" in out
    assert re.search(r"\nran        \S+Z to \S+Z \(by the machine's clock\)\n", out)
    beyond = "1 IMPLAUSIBLE: faster than the machine's limit"
    figure = r"result     tiny-gpt-neox: \S+ ±\S+ days on 2 devices, naive, the fastest of 2 trials"
    assert re.search(rf"\n{figure}; {beyond}\n", out)
    assert f"\nresult     tiny-gpt-neox: no figure, of 1 trial; {beyond}\n" in out


def test_a_bundle_of_a_newer_version_is_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "new.tar"
    results = b'{"schema": "bench/results/v2", "planets": 9}'
    files = {"manifest.json": b"{}", "results.json": results, "samples.jsonl": b""}
    when = "2026-01-01T00:00:00Z"
    pack(path, files, Predicate("aa", hashlib.sha256(b"{}").hexdigest(), {}, when, when, True), KEY)
    code, out, err = run(capsys, path, ROOT / "results/proof-h200/vit.tar")
    assert code == 4
    assert f"{path}: its results are bench/results/v2, this bench knows bench/results/v1" in err
    assert "vit-l" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--budget-usd", "0"], "is not more than 0"),
        (["--budget-usd", "x"], "is not a number"),
        (["--deadline", "soon"], "is not a number"),
        (["--deadline", "inf"], "is not a number"),
        (["--deadline=-1"], "is not more than 0"),
        (["--utilisation", "101"], "is more than 100%"),
        (["--runs", "0"], "is not a whole number"),
        (["--format", "pdf"], "--format pdf: not a choice"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], why: str, capsys: Any) -> None:
    code, out, err = run(capsys, "x.tar", *arguments)
    assert (code, out) == (2, "")
    assert why in err


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_gets_tables_with_fewer_columns(
    columns: int, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = table(comparison)
    assert max(map(len, whole.splitlines())) > 120  # a file's lines stay whole
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = table(comparison)
    lines = [line for line in narrow.splitlines() if ".tar" not in line]  # a path stays one word
    assert max(map(len, lines)) <= columns
    heads = [line.split() for line in lines if line.lstrip().startswith("machine ")]
    ranked = [words for words in heads if "days" in words and "price" not in words]
    assert len(ranked) == len(comparison.parts)  # every model is a table
    assert all("days" in words for words in ranked)
    assert columns == 120 or not any("run" in words for words in ranked)
    assert len({tuple(words) for words in ranked}) == 1  # and all models have the same columns
    words = " ".join(narrow.split())
    for part in comparison.parts:
        for entry in part.entries:
            assert interval_text(entry.days) in narrow
            assert all(money_text(offer.run_cost, "USD") in words for offer in entry.offers)
    assert "<- fastest in budget" in words


def test_a_terminal_of_forty_columns_gets_tables_too(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = [line for line in table(comparison).splitlines() if ".tar" not in line]  # a path stays one word
    heads = [line.split() for line in lines if line.lstrip().startswith("machine ")]
    assert [words for words in heads if "days" in words] == len(comparison.parts) * [["machine", "days"]]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("columns", [None, 60, 80])
def test_columns_are_those_that_the_user_names(
    columns: int | None, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    text = table(comparison, ["level", "days"])
    heads = [line.split() for line in text.splitlines() if line.lstrip().startswith("machine ")]
    ranked = [words for words in heads if "level" in words]
    assert ranked == len(comparison.parts) * [["machine", "level", "days"]]
    assert "no room for" not in text


def test_an_unknown_column_is_refused_with_the_nearest(capsys: Any) -> None:
    bundle = ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar"
    assert run(capsys, bundle, "--columns", "dais") == (
        2,
        "",
        '--columns dais: no such column\n  nearest: "days"\n',
    )
    code, _, err = run(capsys, bundle, "--columns", "days", "--json")
    assert code == 2 and "--columns with json, which has every column" in err


@pytest.mark.parametrize("columns", [80, 400])
def test_one_bundles_settings_fit_the_terminal_too(
    columns: int, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar")
    settings = out.partition("level self, signed by")[2].partition("\n")[2]
    assert code == 0
    assert max(map(len, settings.splitlines())) <= columns
    assert re.search(r"^\*   free-lunch \+ fsdp-2 +16 x 32 x 2  ", settings, re.MULTILINE)


def test_every_setting_is_shown_as_text_markdown_or_json_and_not_dropped(capsys: Any) -> None:
    path = ROOT / "results/every-setting-h200/pythia-160m-1gpu.tar"
    for format in ("table", "markdown", "json"):
        code, out, _ = run(capsys, path, path, "--settings", "--format", format)
        assert code == 0
        assert "checkpointing + fsdp-3 + offload" in out
    code, out, err = run(capsys, path, "--settings", "--format", "csv")
    assert (code, out) == (2, "")
    assert "--json" in err


def test_a_budget_in_dollars_needs_prices_in_dollars(tmp_path: Path, capsys: Any) -> None:
    prices = tmp_path / "p.json"
    prices.write_text('{"schema": "bench/prices/v1", "currency": "EUR", "shipped": false}')
    code, out, err = run(capsys, ROOT / "results/proof-h200", "--prices", prices, "--budget-usd", "5")
    assert (code, out) == (2, "")
    assert "EUR" in err
    document = {"schema": "bench/prices/v1", "currency": "EUR"}
    prices.write_text(json.dumps({**document, "exchange": [{"currency": "USD", "price": 0.5, **QUOTE}]}))
    code, out, _ = run(
        capsys, bundle(tmp_path / "a.tar"), "--prices", prices, "--budget-usd", "31000", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["wish"]["budget"] == 15_500  # in euros, like its offers
    bought, rented = found["parts"][0]["entries"][0]["offers"]
    assert (bought["price"], bought["in_budget"]) == (15_500, True)
    assert rented["price"] == pytest.approx(2.69 / 2)


@pytest.mark.parametrize("format", ["table", "csv", "markdown", "json"])
def test_text_from_a_bundle_contains_no_terminal_control_characters(
    format: str, tmp_path: Path, capsys: Any
) -> None:
    """A stranger chose the names of a package, an outcome and a file; none of them may move the cursor."""
    evil = "\x1b[2J\x1b[1;31m\u202edna"
    path = bundle(
        tmp_path / f"a{evil}.tar",
        packages={"torch": f"2.11{evil}"},
        settings=[((), 0.5), (("tf32",), Crashed(evil))],
    )
    bad = tmp_path / f"bad{evil}.tar"
    bad.write_bytes(b"x")
    every = ["--settings"] if format != "csv" else []
    code, out, err = run(capsys, path, bad, "--format", format, *every)
    assert code == 4
    assert main(["verify", str(path), str(bad)]) == 4
    verified = capsys.readouterr()
    for text in (out, err, verified.out, verified.err):
        assert "2J" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_file_need_not_have_a_name_in_utf8(tmp_path: Path, capsys: Any) -> None:
    path = bundle(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tar")))
    report = tmp_path / "report.html"
    code, out, err = run(
        capsys, path, path.with_name("gone\udce9.tar"), "--html", report, "--plots", tmp_path / "p"
    )
    assert code == 2
    assert "gone" in err
    assert "tiny-gpt-neox" in out
    assert "gone" in report.read_text()


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
def test_every_format_is_one_document_on_stdout(format: str, capsys: Any) -> None:
    code, out, err = run(capsys, ROOT / "results/proof-h200", "--format", format)
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    assert not out.endswith("\n\n")
