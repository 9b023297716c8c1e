"""`bench reproduce` with the second run given: figure by figure, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from tests.report.made import CRASH, H100, NO_MEMORY, bundle, manifest

WIDE = (0.2, 1.0, 1.8, 1.0, 0.2, 1.8)


def reproduce(capsys: Any, there: Path, here: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["reproduce", str(there), "--with", str(here), "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def pair(folder: Path, **here: Any) -> tuple[Path, Path]:
    there = bundle(folder / "there.tar", run_id="there")
    return there, bundle(folder / "here.tar", **{"run_id": "here", "uuid": "other", **here})


def figure(document: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = document["compared"]
    return next(figure for figure in one["figures"] if figure["name"] == name)


def test_the_same_figures_are_reproduced(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, pass_seconds=0.5001))
    assert (code, document["reproduced"]) == (0, True)
    assert figure(document, "step seconds")["verdict"] == "reproduced"
    assert document["compared"][0]["reasons"] == []


def test_a_slower_run_is_not_reproduced_and_says_by_how_much_and_why(tmp_path: Path, capsys: Any) -> None:
    paths = pair(
        tmp_path, pass_seconds=0.55, watts=300.0, packages={"torch": "2.9.0"}, gpu="NVIDIA H100 PCIe"
    )
    code, document = reproduce(capsys, *paths)
    assert code == 1
    step = figure(document, "step seconds")
    assert step["verdict"] == "not reproduced"
    assert step["percent"] == pytest.approx(10.0)
    assert document["compared"][0]["reasons"] == [
        f"1x NVIDIA H100 PCIe here, 1x {H100} there",
        "torch 2.9.0 here, 2.11.0 there",
        "300 W a GPU here, 400 there",
    ]
    assert figure(document, "peak bytes")["verdict"] == "reproduced"


def test_what_two_runs_differ_by_anyway_is_the_users_to_say(tmp_path: Path, capsys: Any) -> None:
    paths = pair(tmp_path, pass_seconds=0.515)
    assert reproduce(capsys, *paths)[0] == 1
    assert reproduce(capsys, *paths, "--tolerance", "5")[0] == 0


def test_intervals_that_allow_anything_decide_nothing(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, spread=WIDE))
    assert code == 1
    assert figure(document, "step seconds")["verdict"] == "undecided"


def test_an_outcome_is_a_figure_too(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, settings=[((), NO_MEMORY)]))
    assert code == 1
    assert figure(document, "outcome")["verdict"] == "not measured"
    assert document["compared"][0]["reasons"][0] == "out-of-memory here, measured there"


def test_the_same_failure_is_reproduced(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "a.tar", settings=[((), CRASH)])
    here = bundle(tmp_path / "b.tar", run_id="bbbb", settings=[((), CRASH)])
    assert reproduce(capsys, there, here)[0] == 0


def test_what_was_not_run_here_is_named(tmp_path: Path, capsys: Any) -> None:
    of = manifest(methods=["naive", ["checkpointing"]])
    there = bundle(tmp_path / "a.tar", of=of, settings=[((), 0.5), (("checkpointing",), 0.6)])
    here = bundle(tmp_path / "b.tar", of=of, run_id="bbbb", complete=False)
    code, document = reproduce(capsys, there, here)
    assert code == 1
    assert document["missing"] == ["tiny-gpt-neox, checkpointing, micro-batch 16"]


def test_another_manifest_is_no_reproduction(tmp_path: Path) -> None:
    there, here = pair(tmp_path, of=manifest(seed=1))
    assert main(["reproduce", str(there), "--with", str(here)]) == 2


def test_a_bundle_that_does_not_verify_is_not_run(tmp_path: Path) -> None:
    there = bundle(tmp_path / "a.tar")
    data = bytearray(there.read_bytes())
    data[-3000] ^= 1
    there.write_bytes(bytes(data))
    assert main(["reproduce", str(there), "-o", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()


def test_another_stack_is_refused_before_anything_runs(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "a.tar", packages={"torch": "0.1"})
    assert main(["reproduce", str(there), "--device", "cpu", "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "torch " in said
    assert "0.1 there" in said
    assert "--any-stack" in said
    assert not (tmp_path / "out").exists()


def test_for_people_it_is_a_line_a_setting(tmp_path: Path, capsys: Any) -> None:
    there, here = pair(tmp_path, pass_seconds=0.55)
    assert main(["reproduce", str(there), "--with", str(here)]) == 1
    out = capsys.readouterr().out
    assert "tiny-gpt-neox naive  step 2.2 s, was 2 s" in out
    assert "NOT REPRODUCED (+10.0%)" in out
    assert "0 of 1 settings reproduced: run here here, there there" in out
