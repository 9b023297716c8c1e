"""The time line of a run: its episodes, from telemetry, and their picture in the report."""

from __future__ import annotations

import itertools
import json
import re
import tarfile
from functools import cache
from pathlib import Path

import pytest

from bench.cli.compare import CompareArguments, collect
from bench.records.run_results import Results
from bench.report.compare.compared_rows import ComparedRun, gather
from bench.report.compare.episodes import Episode, ends_of, episodes_of
from bench.report.pages.html import page
from bench.report.plots.timeline import LEFT, RIGHT, plots
from bench.report.read_bundles import verify_one
from tests.report.made import bundle

RESULTS = Path(__file__).parents[2] / "results"
PROOF = RESULTS / "proof-h200/vit.tar"
RECOVERY = RESULTS / "recovery-2xh200/rank-killed-then-out-of-memory.tar"


@cache
def of_bundle(path: Path) -> ComparedRun:
    contents = verify_one(path, None, gather_all).contents
    assert isinstance(contents, ComparedRun)
    return contents


def gather_all(files: object) -> object:
    return gather(files, with_telemetry=True)  # type: ignore[arg-type]


def kinds(episodes: tuple[Episode, ...]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in episodes))


def test_a_run_begins_with_the_limits_of_the_machine_and_ends_with_its_proof() -> None:
    run = of_bundle(PROOF)
    assert kinds(run.episodes) == ["preparation", "trial", "proof"]
    proof = run.episodes[-1]
    (proven,) = [trial.proof for trial in run.results.trials if trial.proof]
    assert proof.ended - proof.begun >= 0.9 * proven.seconds
    assert proof.model == "vit-l"


def test_a_trial_whose_gradients_were_checked_has_no_proof_before_them() -> None:
    """The trial's process goes on for a moment after the last timed step."""
    run = of_bundle(RESULTS / "nine-h200/pythia-1b.tar")
    assert [one.kind for one in run.episodes if one.model] == ["trial", "proof"]


def test_a_crash_and_missing_memory_are_told_apart() -> None:
    assert {"failed", "no memory", "trial"} <= {*kinds(of_bundle(RECOVERY).episodes)}


@pytest.mark.parametrize("path", [PROOF, RECOVERY])
def test_episodes_follow_one_another(path: Path) -> None:
    episodes = of_bundle(path).episodes
    assert all(one.ended == after.begun for one, after in itertools.pairwise(episodes))
    assert all(one.begun <= one.ended for one in episodes)


def made_up(readings: list[tuple[float, object]], results: Results) -> tuple[Episode, ...]:
    lines = [json.dumps({"at": at, "trial": name, "gpus": []}).encode() for at, name in readings]
    return episodes_of(lines, results, {})


def test_interruptions_strange_names_and_clocks_that_are_set_back() -> None:
    results = of_bundle(PROOF).results
    trial = results.trials[0].id
    run = [(0.0, "ceilings"), (1.0, trial), (2.0, trial), (3.0, None), (4.0, ["?"]), (90.0, "floor")]
    found = made_up([*run, (89.0, "gradients"), (91.0, "gradients")], results)
    assert [(one.kind, one.begun, one.ended) for one in found] == [
        ("preparation", 0.0, 1.0),
        ("trial", 1.0, 3.0),
        ("waiting", 3.0, 4.0),
        ("waiting", 4.0, 90.0),
        ("floor", 90.0, 90.0),
        ("gradients", 90.0, 91.0),
    ]
    assert [one.label for one in found if one.kind == "waiting"] == ["between jobs", "not going on"]
    assert made_up(run[:1], results) == ()


def test_a_reading_as_bench_writes_it_means_what_any_json_of_it_means() -> None:
    lines = [line for line in telemetry_of(RECOVERY) if line]
    spaced = [json.dumps(json.loads(line), indent=1).encode() for line in lines]
    results = of_bundle(RECOVERY).results
    assert episodes_of(lines, results, {}) == episodes_of(spaced, results, {}) != ()


def telemetry_of(path: Path) -> list[bytes]:
    with tarfile.open(path) as tar:
        member = tar.extractfile("telemetry.jsonl")
        assert member is not None
        return member.read().split(b"\n")


def test_the_end_of_a_trial_is_that_of_its_last_measurement() -> None:
    lines = [json.dumps({"trial": "a", "measurement": {"ended_at": at}}).encode() for at in (5, 9)]
    assert ends_of(lines) == {"a": 9.0}


def test_the_report_has_one_picture_of_each_run_with_every_lane() -> None:
    request = CompareArguments((PROOF, RECOVERY), html=Path("unused"))
    drawn = list(plots(collect(request)))
    assert len(drawn) == 2
    for plot in drawn:
        assert plot.width <= 520  # its letters can be read on a phone
        for left, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', plot.body):
            assert float(left) >= LEFT and float(left) + float(width) <= RIGHT + 1
    assert "out of memory: 1 time" in next(p.description for p in drawn if "out of memory" in p.description)
    whole = page(collect(request))
    assert all(plot.title in whole for plot in drawn)


def test_the_name_of_a_machine_is_escaped(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpu="<b>GPU")
    (plot,) = plots(collect(CompareArguments((path,), html=Path("unused"))))
    assert "<b>GPU" in plot.title
    assert "<b>GPU" not in page(collect(CompareArguments((path,), html=Path("unused"))))
    assert "tiny-gpt-neox" in plot.body
