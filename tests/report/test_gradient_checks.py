"""Gradient checks in a bundle: shown, recomputed to a decision, and refused if no run can have them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.bundle.verify import verify_bundle
from bench.cli.verify import _result
from bench.node_check.recompute_any import recompute, trained_run
from bench.records.fastest import fastest, fastest_with_confidence, runner_up
from bench.records.gradients import CheckOrReason, GradientCheck
from bench.report.pages.html import page
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from tests.report.made import CRASH, bundle, manifest
from tests.report.test_floors import compared, forged, refused, shown

AGREES = GradientCheck((), 28, 0.004, "embed_in.weight", 0.03)
WRONG = GradientCheck(("checkpointing",), 28, 1.5, "layers.1.attention.query_key_value.weight", 2000.0)
INFINITE = replace(WRONG, whole_difference=None, worst_difference=None)
TWO = manifest(methods=["naive", ["kernels"], ["tf32"]])
SETTINGS = [((), 0.6), (("kernels",), 0.5), (("tf32",), CRASH)]


def checked(path: Path, found: CheckOrReason, **changes: Any) -> Path:
    """Write the bundle of a run in which the second of three settings is the fastest and was checked."""
    return bundle(path, of=TWO, settings=SETTINGS, checks={("kernels",): found}, **changes)


def lines_of(path: Path) -> str:
    """Return a table with all spaces and line breaks made one."""
    return " ".join(shown(path).split())


# --- ranking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [AGREES, WRONG, INFINITE, "crashed: it fell over"])
def test_a_check_comes_back_from_the_bundle_and_decides_what_is_the_fastest(
    found: CheckOrReason, tmp_path: Path
) -> None:
    results = verify_bundle(checked(tmp_path / "a.tar", found), recompute).contents.results
    naive, kernels, _ = results.trials
    assert (kernels.gradient_check or kernels.no_gradient_check) == found
    best = naive if found in (WRONG, INFINITE) else kernels
    assert fastest(results.trials, ()) == best
    certain = fastest_with_confidence("tiny-gpt-neox", results.trials, 0)
    assert (certain.trial, certain.confidence) == (best.id, pytest.approx(1.0))
    assert runner_up("tiny-gpt-neox", results.trials, ()) is None
    assert compared(tmp_path / "a.tar").parts[0].entries[0].row.best.label == best.label


def test_no_micro_batch_of_a_wrong_setting_is_ranked(tmp_path: Path) -> None:
    results = verify_bundle(checked(tmp_path / "a.tar", WRONG), recompute).contents.results
    naive, kernels, _ = results.trials
    smaller = replace(kernels, id="another", micro_batch=8, gradient_check=None)
    assert fastest([naive, kernels, smaller], ()) == naive


# --- shown ----------------------------------------------------------------------------------------------


def test_the_table_of_a_run_says_that_gradients_agree(tmp_path: Path) -> None:
    differ = "they differ from the unmodified model's by 3% in embed_in.weight, 0.4% in all"
    text = lines_of(checked(tmp_path / "a.tar", AGREES))
    assert f"gradients tiny-gpt-neox: kernels at micro-batch 16: {differ}" in text
    assert "WRONG" not in text


@pytest.mark.parametrize(
    ("found", "worst"), [(WRONG, "200,000% in layers.1"), (INFINITE, "infinite or no number in layers.1")]
)
def test_the_row_of_a_wrong_setting_names_the_worst_parameter_and_no_figures(
    found: GradientCheck, worst: str, tmp_path: Path
) -> None:
    path = checked(tmp_path / "a.tar", found)
    (row,) = [line for line in shown(path).splitlines() if line.strip().startswith("kernels")]
    assert row.split()[-2:] == ["WRONG", "GRADIENTS"]
    differ = f"kernels: they differ from the unmodified model's by {worst}"
    assert f"WRONG GRADIENTS tiny-gpt-neox: {differ}" in lines_of(path)
    assert "this setting is never ranked" in lines_of(path)
    run = trained_run(verify_bundle(path, recompute))
    told = _result("tiny-gpt-neox", run)
    assert "naive, the fastest of 3 trials; 1 setting with WRONG GRADIENTS" in told


def test_a_comparison_names_wrong_settings_and_unchecked_ones(tmp_path: Path) -> None:
    a = checked(tmp_path / "a.tar", WRONG)
    b = checked(tmp_path / "b.tar", "out of gpu memory: much", uuid="B", run_id="bbbb")
    both = compared(a, b)
    wrong = "its gradients differ from the unmodified model's by 200,000% in layers.1"
    for text in (table(both), markdown(both), unescape(page(both))):
        in_a_line = " ".join(text.split())
        assert f"kernels: {wrong}" in in_a_line
        assert "kernels: out of gpu memory: much" in in_a_line
    reasons = json.dumps(json_text(both))
    assert "wrong-gradients" in reasons
    settings = [row["setting"] for row in csv.DictReader(io.StringIO(csv_text(both)))]
    assert sorted(settings) == ["kernels", "naive"]


def test_rows_of_a_narrow_terminal_stay_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number, found in enumerate([AGREES, WRONG, "out of gpu memory: much"]):
        path = checked(tmp_path / f"{number}.tar", found)
        for text in (shown(path), table(compared(path))):
            assert max(map(len, text.splitlines())) <= 80
    right = table(compared(tmp_path / "0.tar"))
    assert "gradient" not in right, "no column, and no line about what is right"


# --- refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"whole_difference": -0.1}, "its gradients have a difference that no gradients have"),
        ({"worst_difference": -0.1}, "its gradients have a difference that no gradients have"),
        ({"whole_difference": 0.04}, "its gradients differ by more than the worst of them"),
        ({"whole_difference": None}, "its gradients differ by more than the worst of them"),
        ({"parameters": 0}, "its gradients were compared with nothing"),
        ({"reference": ["compile"]}, "its gradients were compared with nothing"),
        ({"agrees": True}, "is malformed"),
        ({"worst": "a\nb"}, "is a text of several lines"),
    ],
)
def test_a_check_that_no_run_can_have(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", AGREES)
    forged(path, lambda results: results["trials"][1]["gradient_check"].update(change))
    refused(path, why)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_difference_that_is_not_a_number(number: str, tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", AGREES)
    forged(path, lambda _: None, ('"whole_difference": 0.004', f'"whole_difference": {number}'))
    refused(path, "results.json")


def test_a_check_of_a_trial_without_a_figure(tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", AGREES)
    forged(path, lambda results: results["trials"][2].update(gradient_check=to_json(AGREES)))
    refused(path, "it has a gradient check, but no figure")


def test_a_check_of_a_setting_that_divides_the_model(tmp_path: Path) -> None:
    setting = ("zero-2",)
    asked = manifest(methods=[list(setting)], gpus=2)
    path = bundle(tmp_path / "a.tar", of=asked, gpus=2, settings=[(setting, 0.5)], checks={setting: AGREES})
    refused(path, "it has a gradient check, but gradients are compared on one device")


def test_a_check_and_a_reason_for_its_absence(tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", AGREES)
    forged(path, lambda results: results["trials"][1].update(no_gradient_check="it crashed"))
    refused(path, "no_gradient_check does not follow from the samples")


def test_a_wrong_setting_that_is_stated_to_be_the_fastest(tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", WRONG)

    def claim(results: dict[str, Any]) -> None:
        wrong = results["trials"][1]["id"]
        results["winners"] = [{"model": "tiny-gpt-neox", "trial": wrong, "undecided": 0, "confidence": 1.0}]

    forged(path, claim)
    refused(path, "the fastest of tiny-gpt-neox is not the one that its trials show")


def test_a_bundle_older_than_gradient_checks_is_valid(tmp_path: Path) -> None:
    path = checked(tmp_path / "a.tar", AGREES)

    def remove(results: dict[str, Any]) -> None:
        for trial in results["trials"]:
            del trial["gradient_check"], trial["no_gradient_check"]

    forged(path, remove)
    assert "gradient" not in shown(path)
    assert "gradient" not in table(compared(path))
