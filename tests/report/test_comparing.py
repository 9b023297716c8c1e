"""The Comparison that is made of bundles: the ranked rows, and why others are not ranked."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.paths import ALLOWED_SIGNERS
from bench.base.strict_json import from_json
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.records.run_results import Results
from bench.records.trial import Image, Measured, StepSample
from bench.report import read_bundles
from bench.report.compare.compared_rows import Machine
from bench.report.compare.comparison import Comparison, ModelPart, differing
from bench.report.pages.html import page
from bench.report.text.comparison_table import markdown, table
from tests.builders import measurement
from tests.report.made import (
    CRASH,
    H100,
    NO_MEMORY,
    START,
    STRANGER,
    bundle,
    copies,
    manifest,
    near_copy,
    payload,
    repacked,
    trust_list,
)

ROOT = Path(__file__).parents[2]
LONG = {"name": "tiny-gpt-neox", "recipe": {"batch_size": 4096}}  # 256 passes a step


def compared(*paths: Path, **request: Any) -> Comparison:
    return collect(CompareArguments(tuple(paths), **request))


def only(comparison: Comparison) -> ModelPart:
    (part,) = comparison.parts
    return part


def labels(part: ModelPart) -> list[tuple[int, str]]:
    return [(entry.place.rank, entry.row.machine.label) for entry in part.entries]


def reasons(part: ModelPart) -> dict[str, tuple[str, ...]]:
    return {Path(one.row.path).name: one.reasons for one in part.apart}


def groups(comparison: Comparison) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return for each group of the only model what differs in it, and the names of its ranked bundles."""
    assert len({part.model for part in comparison.parts}) == 1
    return [(p.differs_in, [Path(entry.row.path).name for entry in p.entries]) for p in comparison.parts]


def two(folder: Path, **second: Any) -> tuple[Path, Path]:
    first = bundle(folder / "a.tar", run_id="aaaa", uuid="A")
    return first, bundle(folder / "b.tar", **{"run_id": "bbbb", "uuid": "B", **second})


def test_machines_are_ranked_by_days_and_only_what_differs_gets_another_rank(tmp_path: Path) -> None:
    paths = [
        bundle(tmp_path / f"{name}.tar", run_id=name, uuid=name, gpu=gpu, pass_seconds=seconds)
        for name, gpu, seconds in [("a", H100, 0.5), ("b", "NVIDIA RTX A6000", 1.5), ("c", H100, 0.5005)]
    ]
    random.Random(0).shuffle(paths)
    part = only(compared(*paths))
    assert labels(part) == [(1, "1x H100 80GB HBM3"), (1, "1x H100 80GB HBM3"), (3, "1x RTX A6000")]
    slower = part.entries[2].place.slower
    assert slower is not None
    assert slower.value == pytest.approx(3.0)


def test_the_best_plausible_setting_represents_a_machine(tmp_path: Path) -> None:
    impossible, fast = 1e-9, 0.25
    path = bundle(
        tmp_path / "a.tar",
        settings=[
            ((), 0.5),
            (("kernels",), fast),
            (("compile",), impossible),
            (("checkpointing",), NO_MEMORY),
        ],
    )
    entry = only(compared(path)).entries[0]
    assert entry.row.best.setting == ("kernels",)
    outcomes = [attempt.outcome for attempt in entry.row.attempts]
    assert outcomes == ["measured", "measured", "implausible", "out-of-memory"]


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        ({"models": [{"name": "tiny-gpt-neox", "recipe": {"batch_size": 32}}]}, "batch 32, not 64"),
        ({"models": [{"name": "tiny-gpt-neox", "recipe": {"steps": 99}}]}, "steps 99, not 2000"),
        (
            {"models": [{"name": "tiny-gpt-neox", "recipe": {"precision": "bf16"}}]},
            "precision bf16, not fp32",
        ),
        (
            {"models": [{"name": "tiny-gpt-neox", "recipe": {"precision": "fp8"}}]},
            "precision fp8, not fp32",
        ),
        ({"models": [{"name": "tiny-gpt-neox", "recipe": {"clip_norm": 2.0}}]}, "another recipe"),
        ({"models": [{"name": "tiny-gpt-neox", "recipe": {"schedule": "wsd"}}]}, "another recipe"),
        ({"memory_cap_gib": 24}, "memory cap 24 GiB, not none"),
        ({"image": "sha256:" + "0" * 64}, "image sha256:"),
    ],
)
def test_bundles_of_different_requests_are_ranked_in_groups_of_their_own(
    tmp_path: Path, of: dict[str, Any], reason: str
) -> None:
    a, b = two(tmp_path, of=manifest(**of))
    third = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C")
    (_, most), ((why, *_), other) = groups(compared(b, a, third))
    assert (sorted(most), other) == (["a.tar", "c.tar"], ["b.tar"])
    assert why.startswith(reason)


@pytest.mark.parametrize(
    ("of", "limits"),
    [
        ({"methods": "exhaustive"}, ""),
        ({}, "methods naive"),
        ({"methods": "exhaustive", "micro_batch": 16}, "micro-batch 16"),
        ({"micro_batch": 16}, "methods naive, micro-batch 16"),
        (
            {"methods": [["checkpointing"], "naive"]},
            "methods 2 listed settings (47d183df)",
        ),
    ],
)
def test_searches_of_any_kind_are_ranked_together_and_a_narrow_one_is_named(
    tmp_path: Path, of: dict[str, Any], limits: str
) -> None:
    a, b = two(tmp_path, of=manifest(**of), pass_seconds=0.6)
    found = compared(a, b)
    assert [entry.row.searched.limits for entry in only(found).entries] == ["methods naive", limits]
    for text in (table(found), page(found), markdown(found).replace("\\", "")):
        assert text.count("searched only") == (2 if limits else 1)
        assert not limits or f"searched only {limits}" in text


@pytest.mark.parametrize("name", ["muon", "adamw-8bit"])
def test_bundles_of_different_optimizers_are_ranked_apart(tmp_path: Path, name: str) -> None:
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"optimizer": name}}])
    a, b = two(tmp_path, of=of)
    third = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C")
    (_, most), (differs_in, other) = groups(compared(b, a, third))
    assert (sorted(most), other) == (["a.tar", "c.tar"], ["b.tar"])
    assert f"optimizer {name}, not adam" in differs_in


def test_bundles_of_one_optimizer_with_other_fields_are_ranked_apart(tmp_path: Path) -> None:
    def muon(**fields: Any) -> Any:
        recipe = {"optimizer": {"name": "muon", **fields}}
        return manifest(models=[{"name": "tiny-gpt-neox", "recipe": recipe}])

    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=muon())
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=muon())
    c = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", of=muon(ns_steps=4))
    assert [differs_in for differs_in, _ in groups(compared(a, b, c))] == [(), ("another recipe",)]


def test_bundles_of_different_software_are_ranked_apart_the_newer_run_first(tmp_path: Path) -> None:
    a, b = two(tmp_path, packages={"torch": "2.9.0"}, started=START - 1)
    assert groups(compared(b, a)) == [((), ["a.tar"]), (("torch 2.9.0, not 2.11.0",), ["b.tar"])]


def test_every_group_is_priced_and_answers_the_question(tmp_path: Path) -> None:
    """No figure leaves the decision because another bundle has other conditions."""
    a, b = two(tmp_path, packages={"torch": "2.9.0"})
    for part in compared(a, b, deadline_days=10.0).parts:
        (offer,) = (offer for entry in part.entries for offer in entry.offers if offer.kind == "rent")
        assert offer.marks == ("cheapest by the deadline",)


def test_the_version_of_deepspeed_counts_among_fastest_settings_that_use_it(tmp_path: Path) -> None:
    """A fastest setting without DeepSpeed ran the same software with any DeepSpeed installed."""
    zero: dict[str, Any] = {"settings": [((), 0.5), (("zero-1",), 0.4)]}
    version = {n: {"torch": "2.11.0", "deepspeed": f"0.19.{n}"} for n in (7, 8)}
    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", packages=version[8], **zero)
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", packages=version[8])
    c = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C")
    d = bundle(tmp_path / "d.tar", run_id="dddd", uuid="D", packages=version[7], **zero)
    e = bundle(tmp_path / "e.tar", run_id="eeee", uuid="E", packages=version[8], **zero)
    assert len(only(compared(a, b, c)).entries) == 3
    (_, most), (differs_in, other) = groups(compared(a, b, c, d, e))
    assert (sorted(most), other) == (["a.tar", "b.tar", "c.tar", "e.tar"], ["d.tar"])
    assert differs_in == ("deepspeed 0.19.7, not 0.19.8",)


def test_bundles_with_different_switches_are_ranked_apart(tmp_path: Path) -> None:
    a, b = two(tmp_path, switches={"NVIDIA_TF32_OVERRIDE": "1", "NCCL_ALGO": "Ring"}, started=START - 1)
    assert groups(compared(a, b))[1] == (("switches NVIDIA_TF32_OVERRIDE=1, not none",), ["b.tar"])
    assert len(only(compared(*two(tmp_path, switches={"NCCL_ALGO": "Ring"}))).entries) == 2


@pytest.mark.parametrize("of", [{"name": "other"}, {"gpus": 1}, {"budget_minutes": 5}, {"seed": 7}])
def test_differences_that_change_no_figure_do_not_set_bundles_apart(
    tmp_path: Path, of: dict[str, Any]
) -> None:
    a, b = two(tmp_path, of=manifest(**of))
    assert len(only(compared(a, b)).entries) == 2


def test_more_gpus_of_a_kind_are_another_machine(tmp_path: Path) -> None:
    a, b = two(tmp_path, gpus=2, pass_seconds=0.5)
    assert labels(only(compared(a, b))) == [(1, "2x H100 80GB HBM3"), (2, "1x H100 80GB HBM3")]


def test_rank_all_ranks_everything_and_reports_the_differences(tmp_path: Path) -> None:
    a, b = two(tmp_path, packages={"torch": "2.9.0"}, pass_seconds=0.1, started=START - 1)
    part = only(compared(a, b, rank_all=True))
    assert [entry.differs_in for entry in part.entries] == [("torch 2.9.0, not 2.11.0",), ()]
    assert not part.apart


@pytest.mark.parametrize("methods", ["naive", "exhaustive"])
def test_a_machine_that_ran_twice_is_listed_once_with_its_fastest_run(tmp_path: Path, methods: str) -> None:
    of = manifest(methods=methods)
    old = bundle(tmp_path / "old.tar", run_id="old", started=1_790_000_000.0, pass_seconds=0.4, of=of)
    new = bundle(tmp_path / "new.tar", run_id="new", started=1_790_009_000.0)
    part = only(compared(old, new))
    assert [entry.row.run_id for entry in part.entries] == ["old"]
    assert reasons(part) == {"new.tar": (f"0.0463 days: the same machine was faster in {old}",)}


def test_a_slowed_run_represents_a_machine_only_if_no_other_does(tmp_path: Path) -> None:
    """The figure of a slowed run may be the fastest of its search, and is not the healthy machine's."""
    slow = bundle(tmp_path / "slow.tar", run_id="slow", pass_seconds=0.4, hot=True)
    good = bundle(tmp_path / "good.tar", run_id="good")
    part = only(compared(slow, good))
    assert [entry.row.run_id for entry in part.entries] == ["good"]
    (why,) = reasons(part)["slow.tar"]
    assert why == f"SLOWED, 0.037 days: the same machine has a run in which it was not: {good}"
    assert [entry.row.run_id for entry in only(compared(slow)).entries] == ["slow"]


def test_an_interrupted_runs_figure_counts_and_is_marked(tmp_path: Path) -> None:
    old = bundle(tmp_path / "old.tar", run_id="old", pass_seconds=0.4)
    new = bundle(tmp_path / "new.tar", run_id="new", complete=False)
    part = only(compared(old, new))
    assert [entry.row.run_id for entry in part.entries] == ["old"]
    alone = compared(new)
    assert [entry.row.run_id for entry in only(alone).entries] == ["new"]
    assert "INCOMPLETE: more settings may be faster" in table(alone)


def test_a_run_that_ended_early_is_incomplete_only_for_undecided_models() -> None:
    """The bundle has nine models in 24 minutes; eight were decided."""
    found = collect(CompareArguments((ROOT / "results/hour-h200/24-minutes.tar",)))
    rows = [entry.row for part in found.parts for entry in part.entries]
    assert {row.model for row in rows if not row.complete} == {"pythia-6.9b"}
    assert len(rows) == 9
    assert table(found).count("INCOMPLETE: more settings may be faster") == 2  # the machine, and its offer
    assert table(found).count("its figure is INCOMPLETE") == 1


def test_a_machine_with_two_kinds_of_gpus_counts_as_neither(tmp_path: Path) -> None:
    """A machine with two kinds of GPUs has no price, and never counts as eight GPUs of the first kind."""
    path = bundle(
        tmp_path / "a.tar", gpu=f"{H100},{H100},{H100},NVIDIA A100-SXM4-80GB", gpus=4, micro_batch=2
    )
    (entry,) = only(compared(path, budget=1e9)).entries
    assert entry.row.machine.label == "3x H100 80GB HBM3 + 1x A100-SXM4-80GB"
    assert entry.offers == ()
    assert entry.gaps[0] == f"no purchase price for 3x {H100} + 1x NVIDIA A100-SXM4-80GB"


def test_a_bundle_on_trust_is_marked_and_ranked_apart(tmp_path: Path, capsys: Any) -> None:
    ours, also = (bundle(tmp_path / f"{n}.tar", run_id=n, uuid=n) for n in ("a1", "a2"))
    theirs = bundle(tmp_path / "b.tar", run_id="b", uuid="b", version="0.0.9", pass_seconds=0.1)
    (why,), names = groups(compared(ours, also, theirs))[1]
    assert names == ["b.tar"]
    assert why.startswith("on trust: ")
    assert "a sample costs 1000 operations" in why
    assert main(["verify", str(theirs)]) == 0
    assert "on trust   tiny-gpt-neox: a sample costs 1000 operations" in capsys.readouterr().out


def test_many_bundles_on_trust_do_not_answer_before_one_that_was_checked(tmp_path: Path) -> None:
    """A stranger can make any number of bundles on trust."""
    ours = bundle(tmp_path / "a.tar", run_id="a", uuid="a")
    theirs = [
        bundle(
            tmp_path / f"{n}.tar", run_id=n, uuid=n, version="0.0.9", pass_seconds=seconds, started=START + 9
        )
        for n, seconds in (("b", 0.1), ("c", 0.11), ("d", 0.12))
    ]
    found = compared(ours, *theirs)
    assert [names for _, names in groups(found)] == [["a.tar"], ["b.tar", "c.tar", "d.tar"]]
    assert found.parts[0].answers[0].choice == compared(ours).parts[0].answers[0].choice
    trusted = compared(ours, *theirs, trust=trust_list(tmp_path / "keys"))
    assert [len(names) for _, names in groups(trusted)] == [3, 1]  # all are signed by one key


def test_a_single_bundle_on_trust_is_marked_too(tmp_path: Path, capsys: Any) -> None:
    """With a single bundle, no other line would explain why its rank means little."""
    theirs = bundle(tmp_path / "b.tar", version="0.0.9")
    for form in ("table", "markdown"):
        assert main(["compare", str(theirs), "--format", form]) == 0
        assert "on trust: 1x H100 80GB HBM3: a sample costs 1000 operations" in capsys.readouterr().out
    assert "a sample costs 1000 operations" in page(compared(theirs))


def test_samples_copied_from_another_run_are_not_ranked(tmp_path: Path) -> None:
    """The samples of one measured machine are submitted under forty names."""
    first, other = two(tmp_path)
    copies(first, tmp_path, 2, own_samples=False, later=1.0)
    (part,) = compared(first, other, *(tmp_path / f"{i:06}.tar" for i in range(2))).parts
    assert {Path(entry.row.path).name for entry in part.entries} == {"a.tar", "b.tar"}
    told = f"its samples are those of another run, so one of the two measured nothing: {first}"
    assert reasons(part) == {"000000.tar": (told,), "000001.tar": (told,)}


@pytest.mark.parametrize(
    ("change", "share", "copied"),
    [
        (1e-12, 1.0, True),  # the last digits of all
        (1e-9, 1.0, True),  # as much as moves no summary
        (0.01, 0.4, True),  # less than half of the times
        (0.01, 0.9, False),
        (1e-4, 1.0, False),
    ],
)
def test_copies_are_recognised_by_their_values(
    tmp_path: Path, change: float, share: float, copied: bool
) -> None:
    first = bundle(tmp_path / "a.tar", run_id="aaaa", settings=[((), 0.5), (("kernels",), 0.4)])
    near = near_copy(first, tmp_path / "b.tar", change, share)
    part = only(compared(first, near))
    assert (len(part.entries), len(part.apart)) == ((1, 1) if copied else (2, 0))
    if copied:
        assert reasons(part)["b.tar"][0].startswith("its samples are those of another run")


def test_one_copied_measurement_among_others_is_enough(tmp_path: Path) -> None:
    """The figure that is ranked is one measurement's: slower ones of its own do not hide a copied one."""
    own = [((), 0.91), (("compile",), 0.8), (("kernels", "compile"), 0.7)]
    first = bundle(tmp_path / "a.tar", run_id="aaaa", settings=[((), 0.9), (("kernels",), 0.4)])
    other = bundle(tmp_path / "b.tar", run_id="aaaa", uuid="B", settings=[*own, (("kernels",), 0.4)])
    part = only(compared(first, other))
    assert reasons(part)["b.tar"][0].startswith("its samples are those of another run")


def test_a_continued_run_is_no_copy_of_itself_and_can_be_copied(tmp_path: Path) -> None:
    """An interrupted run and its continuation share samples; a copy may have the later ones."""
    settings = [((), 0.9), (("kernels",), 0.4)]
    begun = bundle(tmp_path / "a.tar", run_id="aaaa", settings=settings[:1], complete=False)
    ended = bundle(tmp_path / "b.tar", run_id="aaaa", settings=settings)
    copy = bundle(tmp_path / "c.tar", run_id="aaaa", uuid="C", settings=settings[1:])
    part = only(compared(begun, ended, copy))
    assert [entry.row.path for entry in part.entries] == [str(ended)]
    assert reasons(part)["a.tar"] == (f"the same run as {ended}",)
    assert reasons(part)["c.tar"][0].endswith(f"measured nothing: {ended}")


def test_a_run_of_ones_own_hides_no_copied_continuation(tmp_path: Path) -> None:
    original = bundle(tmp_path / "z.tar", run_id="bbbb", settings=[((), 0.9), (("kernels",), 0.4)])
    (tmp_path / "theirs").mkdir()
    near = near_copy(original, tmp_path / "theirs" / "b.tar", started_at=START + 1)
    own = near_copy(
        original, tmp_path / "b.tar", 0.01, started_at=START + 1
    )  # the same run id and GPUs as the copy
    part = only(compared(own, original, near))
    assert {entry.row.path for entry in part.entries} == {str(own), str(original)}
    assert reasons(part)["b.tar"][0].endswith(f"measured nothing: {original}")


def test_lines_that_bench_does_not_write_are_refused(tmp_path: Path) -> None:
    """An additional blank would make another file of the same samples."""
    first = bundle(tmp_path / "a.tar")
    files = payload(first)
    files["samples.jsonl"] = files["samples.jsonl"].replace(b'"steps":', b'"steps": ', 1)
    blank = repacked(tmp_path / "b.tar", from_json(Results, json.loads(files["results.json"])), files)
    (refused,) = compared(first, blank).refused
    assert "samples.jsonl: line 1: is not written as bench writes it" in refused.reason


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the key of the tests for all bundles, and no other."""
    kept = tmp_path / "kept"
    monkeypatch.setattr(read_bundles, "config_path", lambda name: kept if name == ALLOWED_SIGNERS else None)
    trust_list(kept)


@pytest.mark.usefixtures("trust")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_strangers_faster_run_replaces_no_trusted_one(tmp_path: Path, reverse: bool) -> None:
    """The GPUs and the times of a bundle are its signer's words."""
    old = bundle(tmp_path / "old.tar", run_id="old", pass_seconds=0.4)
    new = bundle(tmp_path / "new.tar", run_id="new", pass_seconds=0.3, key=STRANGER)
    newest = bundle(tmp_path / "newest.tar", run_id="newest", pass_seconds=0.2, key=STRANGER)
    paths = [old, new, newest]
    found = compared(*(reversed(paths) if reverse else paths))
    part = only(found)
    assert [entry.row.run_id for entry in part.entries] == ["newest", "old"]
    assert reasons(part) == {"new.tar": (f"0.0278 days: the same machine was faster in {newest}",)}
    remark = f"does not replace {old}, a run on the same GPUs: both count"
    for text in (table(found), page(found), markdown(found).replace("\\", "")):
        assert remark in " ".join(text.split())


@pytest.mark.usefixtures("trust")
def test_a_trusted_faster_run_replaces_a_strangers(tmp_path: Path) -> None:
    old = bundle(tmp_path / "old.tar", run_id="old", key=STRANGER)
    new = bundle(tmp_path / "new.tar", run_id="new", pass_seconds=0.4)
    assert [entry.row.run_id for entry in only(compared(old, new)).entries] == ["new"]


@pytest.mark.usefixtures("trust")
@pytest.mark.parametrize("name", ["0-before", "z-after"])
def test_a_strangers_copy_throws_no_trusted_original_out(tmp_path: Path, name: str) -> None:
    """Whichever is named first: a stranger can also sign the same run once more, as newer, on other GPUs."""
    first = bundle(tmp_path / "original.tar", run_id="original")
    near_copy(first, tmp_path / f"{name}.tar", key=STRANGER, started_at=START - 90)
    signed_again = near_copy(first, tmp_path / f"{name}2.tar", key=STRANGER)
    (tmp_path / "own").mkdir()
    again = near_copy(first, tmp_path / "own" / "original.tar", key=STRANGER)  # has the original's run id
    part = only(compared(*sorted(tmp_path.glob("*.tar")), signed_again, again))
    assert [entry.row.path for entry in part.entries] == [str(first)]
    assert {why[0] for why in reasons(part).values()} == {
        f"its samples are those of another run, so one of the two measured nothing: {first}"
    }


@pytest.mark.usefixtures("trust")
def test_strangers_do_not_decide_what_is_compared(tmp_path: Path) -> None:
    """The first group has the most trusted machines: strangers can bring any number of machines."""
    ours = bundle(tmp_path / "ours.tar", run_id="ours", uuid="ours")
    theirs = [
        bundle(tmp_path / f"{n}.tar", run_id=n, uuid=n, packages={"torch": "2.9.0"}, key=STRANGER)
        for n in ("a", "b", "c")
    ]
    first, other = compared(*theirs, ours).parts
    assert [entry.row.path for entry in first.entries] == [str(ours)]
    assert len(other.entries) == 3


@pytest.mark.usefixtures("trust")
def test_strangers_do_not_move_an_estimate(tmp_path: Path) -> None:
    ours = bundle(tmp_path / "ours.tar", run_id="ours", uuid="ours", of=manifest(models=[LONG]))
    theirs = bundle(
        tmp_path / "theirs.tar", run_id="theirs", uuid="theirs", pass_seconds=0.01,
        of=manifest(models=[LONG]), key=STRANGER,
    )  # fmt: skip
    both = only(compared(theirs, ours, estimate=("2xh100",)))
    assert len(both.entries) == 2
    assert both.guesses == only(compared(ours, estimate=("2xh100",))).guesses


def test_a_bundle_given_twice_counts_once(tmp_path: Path) -> None:
    first = bundle(tmp_path / "a.tar")
    copy = tmp_path / "b.tar"
    copy.write_bytes(first.read_bytes())
    part = only(compared(first, copy))
    assert len(part.entries) == 1
    assert reasons(part) == {"b.tar": (f"the same run as {first}",)}


def test_a_model_without_a_figure_is_named(tmp_path: Path) -> None:
    a, b = two(tmp_path, settings=[((), NO_MEMORY), (("kernels",), NO_MEMORY), (("compile",), CRASH)])
    assert reasons(only(compared(a, b))) == {"b.tar": ("no figure: 2 out-of-memory, 1 crashed",)}


def test_energy_comes_from_the_gpus_counters_while_steps_were_timed(tmp_path: Path) -> None:
    a = bundle(tmp_path / "a.tar", gpus=2, watts=350.0)
    entry = only(compared(a)).entries[0]
    assert entry.row.watts == pytest.approx(700.0)
    assert entry.kwh == pytest.approx(0.7 * 24 * entry.row.best.days.value)


def test_no_energy_is_given_if_updates_dominate_the_timed_steps(tmp_path: Path) -> None:
    """The timed steps have one and three passes and a long update; the recipe's step has 256 passes."""
    steps = [StepSample(n, n * 0.1 + 2.0 + f) for f in (-0.001, 0.0, 0.001) for n in (1, 3)]
    outcome = Measured(measurement(steps, started_at=START + 10, ended_at=START + 50))
    path = bundle(tmp_path / "a.tar", settings=[((), outcome)], of=manifest(models=[LONG]))
    assert only(compared(path)).entries[0].kwh is None


@pytest.mark.parametrize("watts", [None, 1e9, 0.0])
def test_without_a_sane_counter_there_is_no_energy(tmp_path: Path, watts: float | None) -> None:
    assert only(compared(bundle(tmp_path / "a.tar", watts=watts))).entries[0].kwh is None


@pytest.mark.parametrize(
    "telemetry", [b"[]\n" * 3, b'{"at": 1}\n' * 3, b"{", b"\xff\n", b'{"gpus": 3}\n' * 4]
)
def test_a_bundle_with_senseless_telemetry_is_refused(tmp_path: Path, telemetry: bytes) -> None:
    good = bundle(tmp_path / "a.tar")
    bad = bundle(tmp_path / "b.tar", run_id="bbbb", telemetry=telemetry)
    found = compared(good, bad, html=tmp_path / "x.html")
    assert len(only(found).entries) == 1
    (refused,) = found.refused
    assert (refused.path, refused.exit_code) == (str(bad), 4)
    assert "telemetry" in refused.reason


def test_a_bundle_that_does_not_verify_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    data = bytearray(b.read_bytes())
    data[700] ^= 1
    b.write_bytes(bytes(data))
    found = compared(a, b, tmp_path / "gone.tar")
    assert len(only(found).entries) == 1
    assert [(refused.path, refused.exit_code) for refused in found.refused] == [
        (str(b), 4),
        (str(tmp_path / "gone.tar"), 2),
    ]


def test_an_empty_directory_or_a_pattern_without_a_match_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "*.tar"):
        with pytest.raises(BadInput, match=r"holds no \.tar|matches no file"):
            compared(path)


def test_a_pattern_and_a_directory_stand_for_their_bundles(tmp_path: Path) -> None:
    two(tmp_path)
    for path in (tmp_path, tmp_path / "*.tar", tmp_path / "[ab].tar"):
        assert compared(path).bundles == 2


@pytest.mark.parametrize("wanted", ["8x", "", "0xh100", "²xh100", "8xpotato"])
def test_only_known_machines_can_be_estimated(tmp_path: Path, wanted: str) -> None:
    with pytest.raises(BadInput, match="no such machine"):
        compared(bundle(tmp_path / "a.tar"), estimate=(wanted,))


def test_each_recipe_is_estimated_from_its_own_rows(tmp_path: Path) -> None:
    """Another recipe of the same name has other operations, in any order of the bundles."""
    usual = manifest(models=[LONG])
    short = manifest(models=[{**LONG, "recipe": {"batch_size": 4096, "steps": 20}}])
    slow = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=short, pass_seconds=2.0)
    same = [bundle(tmp_path / f"{n}.tar", run_id=n * 4, uuid=n, of=usual) for n in "bc"]
    for paths in ((slow, *same), (*same, slow)):
        found = compared(*paths, estimate=("2xh100",))
        assert [names for _, names in groups(found)][1] == ["a.tar"]
        for part in found.parts:
            best = part.entries[0].row.best
            assert part.guesses[0].days == pytest.approx(best.days.value / 2, rel=0.01)


def test_an_estimate_uses_the_setting_with_the_fewest_operations() -> None:
    """Two runs have the same recipe, and the older one lacks masked-head; their order does not matter."""
    proof, hour = ROOT / "results/proof-h200/roberta.tar", ROOT / "results/hour-h200/roberta-large.tar"
    both = [only(compared(*paths, estimate=("2xh200",))).guesses for paths in ((proof, hour), (hour, proof))]
    assert both[0] == both[1] == only(compared(hour, estimate=("2xh200",))).guesses


def test_a_measured_machine_that_is_no_evidence_is_not_called_unmeasured(tmp_path: Path) -> None:
    """A row can be in the table and no evidence: its run ended before it decided the model, for example."""
    partial = bundle(tmp_path / "a.tar", complete=False)
    v100 = bundle(tmp_path / "b.tar", gpu="Tesla V100-SXM2-32GB")
    for path, why in ((partial, "gpt_neox is complete"), (v100, "V100-SXM2-32GB: no vendor's peak")):
        (guess,) = only(compared(path, estimate=("8xh100",))).guesses
        assert guess.days is None
        assert why in guess.basis


def test_a_gpu_without_a_known_peak_is_not_ranked_with_others(tmp_path: Path) -> None:
    unknown = bundle(tmp_path / "u.tar", gpu="NVIDIA H200 NVL", uuid="U", run_id="u")
    known, other = compared(*two(tmp_path), unknown).parts
    assert [entry.row.on_trust for entry in known.entries] == [None, None]
    assert [entry.row.path for entry in other.entries] == [str(unknown)]


def test_trust_is_shown_and_not_assumed(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    assert only(compared(a)).entries[0].row.trusted is False


def test_many_bundles_give_the_same_result_as_few(tmp_path: Path) -> None:
    """MANY_BUNDLES or more are verified in several processes."""
    paths = [
        bundle(tmp_path / f"{i:03}.tar", run_id=f"r{i}", uuid=f"G{i}", pass_seconds=0.5 + i / 100)
        for i in range(70)
    ]
    part = only(compared(*paths))
    assert [Path(e.row.path).name for e in part.entries] == [path.name for path in paths]
    few = only(compared(*paths[:3]))
    assert [e.row for e in few.entries] == [e.row for e in part.entries[:3]]


def test_a_memory_cap_of_all_rows_is_reported(tmp_path: Path) -> None:
    capped = manifest(memory_cap_gib=24)
    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=capped)
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=capped)
    assert "memory capped at 24 GiB of each device" in table(compared(a, b))
    c = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C")
    assert "capped" not in table(compared(c))


def test_a_model_missing_from_some_bundles_is_marked(tmp_path: Path) -> None:
    """A machine without a row was not slower: it was not measured with that model."""
    a, b = two(tmp_path)
    both = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C",
                  of=manifest(models=["tiny-gpt-neox", "tiny-vit"]))  # fmt: skip
    text = table(compared(a, b, both))
    assert text.count("without this model") == 1
    assert "2 of 3 bundles without this model" in text[text.index("tiny-vit") :]


RTX_3090 = "NVIDIA GeForce RTX 3090"


def on_node(path: Path, **facts: Any) -> Path:
    """Sign a run again whose node has other facts."""
    files = payload(path)
    results = from_json(Results, json.loads(files["results.json"]))
    return repacked(path, replace(results, node=replace(results.node, **facts)), files)


def test_bundles_of_images_with_other_packages_are_ranked_apart(tmp_path: Path) -> None:
    a, b = (
        on_node(path, image=Image("cuda13", lock, "0" * 64))
        for path, lock in zip(two(tmp_path, started=START - 1), ("1" * 64, "2" * 64), strict=True)
    )
    told = f"image cuda13, wheels {'2' * 64}, not cuda13, wheels {'1' * 64}"
    assert groups(compared(a, b))[1] == ((told,), ["b.tar"])


def test_a_cpu_is_not_ranked_with_gpus(tmp_path: Path) -> None:
    a, b = two(tmp_path, watts=None, started=START - 1)
    on_node(b, gpus=())
    assert groups(compared(a, b))[1] == (("device cpu, not cuda",), ["b.tar"])


def test_models_of_one_name_and_other_sizes_are_ranked_apart(tmp_path: Path) -> None:
    def of(hidden_size: int) -> Any:
        own = {"model_type": "gpt_neox", "hidden_size": hidden_size, "num_attention_heads": 4}
        recipe = {"objective": "causal-lm", "batch_size": 64, "steps": 2000, "precision": "fp32"}
        model = {"name": "mine", "architecture": own, "recipe": recipe | {"sequence_length": 16}}
        return manifest(models=[model])

    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=of(64))
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=of(128), started=START - 1)
    found = compared(a, b)
    assert groups(found)[1] == (("another architecture",), ["b.tar"])
    shown = dict(found.parts[0].conditions)
    assert all(re.fullmatch("[0-9a-f]{8}", shown[name]) for name in ("architecture", "rest of the recipe"))


@pytest.mark.parametrize(
    ("trained", "label", "nodes"), [(2, "2x H100 80GB HBM3", 1), (4, "4x H100 80GB HBM3 on 2 nodes", 2)]
)
def test_idle_gpus_of_a_node_are_no_part_of_the_machine(
    tmp_path: Path, trained: int, label: str, nodes: int
) -> None:
    path = bundle(
        tmp_path / "a.tar", gpu=f"{H100},{H100},{RTX_3090},{RTX_3090}", gpus=trained, of=manifest(gpus=2)
    )
    machine = only(compared(path)).entries[0].row.machine
    assert (machine.label, machine.nodes, machine.memory_bytes) == (label, nodes, 80 * 2**30)


def test_a_run_on_more_gpus_than_its_node_has_is_refused(tmp_path: Path) -> None:
    """The run would be priced as two machines with one GPU each."""
    of = manifest(gpus=3, models=[{"name": "tiny-gpt-neox", "recipe": {"batch_size": 96}}])
    (refused,) = compared(bundle(tmp_path / "a.tar", gpus=3, on_one_node=2, of=of)).refused
    assert "the manifest asks for 3 GPUs, the node has 2" in refused.reason


def test_a_node_on_which_nothing_was_tried_is_one_machine(tmp_path: Path) -> None:
    (apart,) = only(compared(bundle(tmp_path / "a.tar", gpus=2, settings=[]))).apart
    assert (apart.row.machine.nodes, apart.reasons) == (1, ("no setting was tried",))


def test_a_machine_has_the_memory_of_its_smallest_gpu(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpu=f"{H100},{RTX_3090}", gpus=2)
    assert only(compared(path)).entries[0].row.machine.memory_bytes == 24 * 2**30


def test_a_node_alone_is_another_machine_than_with_a_second_node(tmp_path: Path) -> None:
    """The bundle of both nodes has the GPUs of the first one only."""
    one = bundle(tmp_path / "a.tar", run_id="aaaa", gpus=2)
    both = bundle(tmp_path / "b.tar", run_id="bbbb", gpus=4, on_one_node=2)
    assert {entry.row.run_id for entry in only(compared(one, both)).entries} == {"aaaa", "bbbb"}


def test_the_operations_of_an_estimate_are_those_of_the_whole_recipe(tmp_path: Path) -> None:
    """The recipe has 2,000 steps of 64 samples, of 17,842,176 operations forward and twice that backward."""
    path = bundle(tmp_path / "a.tar", gpu="NVIDIA RTX A6000")
    (guess,) = only(compared(path, estimate=("1xh100",))).guesses
    operations = 2_000 * 64 * 3 * 17_842_176
    assert guess.at_peak_days == pytest.approx(operations / (494.7e12 * 86_400))


def test_an_estimate_from_a_row_without_tf32_is_at_the_share_of_the_plain_peak(tmp_path: Path) -> None:
    part = only(compared(bundle(tmp_path / "a.tar"), estimate=("1xa100-80gb",)))
    plain = part.entries[0].row.best.days.value * 66.9 / 19.5  # TFLOP/s of fp32
    assert part.guesses[0].days == pytest.approx(plain)


def test_rows_without_a_figure_do_not_decide_what_is_ranked(tmp_path: Path) -> None:
    other = manifest(models=[{**LONG, "recipe": {"batch_size": 64, "steps": 20}}])
    nothing = [
        bundle(tmp_path / f"{n}.tar", run_id=n, uuid=n, of=other, settings=[((), NO_MEMORY)]) for n in "bc"
    ]
    measured = bundle(tmp_path / "a.tar", run_id="a", uuid="a")
    part = only(compared(*nothing, measured, estimate=("2xh100",)))
    assert [entry.row.path for entry in part.entries] == [str(measured)]
    assert part.guesses == only(compared(measured, estimate=("2xh100",))).guesses


def test_a_machine_is_labelled_by_the_number_of_its_gpus_or_of_several_cpus() -> None:
    cpu = Machine("some CPU", "cpu", 1, 2**37, "run a")
    assert (cpu.label, replace(cpu, devices=2).label) == ("some CPU", "2x some CPU")
    gpu = Machine("NVIDIA H200", "cuda", 1, 2**37, "a-1")
    assert (gpu.label, replace(gpu, devices=2).label) == ("1x H200", "2x H200")


def test_a_cpu_that_is_named_like_a_gpu_is_no_evidence(tmp_path: Path) -> None:
    """A node says itself how its CPU is named."""
    path = on_node(bundle(tmp_path / "a.tar", watts=None), gpus=(), cpu=H100)
    (guess,) = only(compared(path, estimate=("8xh100",))).guesses
    assert guess.days is None
    assert guess.basis == f"{H100}: no vendor's peak is known to estimate from"


@pytest.mark.parametrize("deadline", [1e-9, 1000.0])
def test_rows_without_prices_meet_a_deadline_or_not(tmp_path: Path, deadline: float) -> None:
    path = bundle(tmp_path / "a.tar", gpu="Accelerator 9000")
    for wish in ({}, {"budget": 1.0}):
        part = only(compared(path, deadline_days=deadline, **wish))
        assert not part.entries[0].offers
        assert part.nothing_in_time == (deadline < 1)


def test_only_measured_settings_can_be_ranked(tmp_path: Path) -> None:
    settings = [((), 0.5), (("compile",), 1e-9), (("checkpointing",), NO_MEMORY)]
    row = only(compared(bundle(tmp_path / "a.tar", settings=settings))).entries[0].row
    assert [attempt.setting for attempt in row.rankable] == [()]


def test_a_recipe_has_only_the_conditions_of_its_own_data(tmp_path: Path) -> None:
    text = only(compared(bundle(tmp_path / "a.tar"))).entries[0].row
    pictures = only(compared(bundle(tmp_path / "b.tar", of=manifest(models=["tiny-vit"])))).entries[0].row
    assert "image size" not in dict(text.conditions)
    assert "sequence length" not in dict(pictures.conditions)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"batch_size": 32}, "batch 32, not 64"),
        ({"steps": 99}, "steps 99, not 2000"),
        ({"precision": "bf16"}, "precision bf16, not fp32"),
        ({"sequence_length": 32}, "sequence length 32, not 64"),
    ],
)
def test_a_field_of_a_recipe_is_told_once(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    """A field with a condition of its own is left out of the condition for the whole recipe."""
    plain, other = (
        manifest(models=[{"name": "tiny-gpt-neox", "recipe": recipe}]) for recipe in ({}, changed)
    )
    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=plain)
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=other, started=START - 1)
    assert groups(compared(a, b))[1] == ((told,), ["b.tar"])


def test_pictures_of_another_size_are_told_once(tmp_path: Path) -> None:
    """The architecture has the size too."""

    def of(size: int) -> Any:
        own = {"model_type": "vit", "hidden_size": 64, "num_attention_heads": 2, "image_size": size}
        recipe = {"objective": "image-classification", "batch_size": 64, "steps": 9, "precision": "fp32"}
        return manifest(models=[{"name": "mine", "architecture": own, "recipe": recipe}])

    a = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", of=of(32))
    b = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=of(64), started=START - 1)
    assert groups(compared(a, b))[1] == (("image size 64, not 32", "another architecture"), ["b.tar"])


def test_differences_are_put_in_words() -> None:
    ours = (("architecture", "a"), ("rest of the recipe", "a"), ("batch", "8"), ("data", "/x"))
    theirs = (("architecture", "b"), ("rest of the recipe", "b"), ("batch", "16"))
    told = ("another architecture", "another recipe", "batch 8, not 16", "data /x, not none")
    assert differing(ours, theirs) == told


def test_node_checks_are_compared_as_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    check = ROOT / "results/node-check-h200/2gpus-run1.tar"
    assert main(["compare", str(check)]) == 0
    assert "2gpus-run1" in capsys.readouterr().out


def test_each_model_of_a_bundle_has_its_own_row_with_its_own_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle(tmp_path / "a.tar", of=manifest(models=["tiny-gpt-neox", "tiny-vit"]))
    parts = compared(path).parts
    assert [part.model for part in parts] == ["tiny-gpt-neox", "tiny-vit"]
    assert [len(part.entries[0].row.attempts) for part in parts] == [1, 1]
    assert main(["compare", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["parts"][0]["entries"][0]["row"]
    assert not {"trained", "step_times", "received_at"} & row.keys()  # what only bench itself needs
