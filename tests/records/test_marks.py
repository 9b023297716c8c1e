"""A disturbed, loaded or unsteady figure has its marks wherever it is shown, and ranks after all others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import canonical_json
from bench.bundle.verify import verify_bundle
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.node_check.recompute_any import recompute
from bench.push.request import Result
from bench.push.screen import ended
from bench.records.estimate import Interval
from bench.records.marks import (
    MEANING,
    Cpus,
    Mark,
    MarkKind,
    mark_lines,
    marked_text,
    marks_of_other_work,
    top_load,
    unsteady,
)
from bench.records.trial import Trial
from bench.report.pages.html import page
from bench.report.plots import money, predictions, scaling, speedups
from bench.report.plots import settings as settings_plots
from bench.report.plots.overall import overall_plot
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from tests.report.made import START, bundle, manifest, measured

RESULTS = Path(__file__).parents[2] / "results"
COMPILED_BESIDE = RESULTS / "proof-2xh200/vit-fsdp-3.tar"
GPUS, CPU = Cpus(16, "cuda"), Cpus(16, "cpu")
WIDE = (0.2, 1.0, 1.8, 1.0, 0.2, 1.8)
Beside = Callable[[int], dict[str, Any]]  # what a reading has, by second


def card(second: int) -> dict[str, Any]:
    return {"sm_mhz": 1980, "celsius": 60, "power_watts": 400.0, "energy_joules": 400.0 * second}


def made(folder: Path, name: str, beside: Beside = lambda _: {"load": 1.0}, **more: Any) -> Path:
    """Write the bundle of a run of sixty seconds, whose steps are timed from the tenth to the fiftieth."""
    of = manifest()
    trial = Trial(of.models[0], (), 16, 1, of.seed, of.timing)
    lines = ({"at": START + i, "trial": trial.id, "gpus": [card(i)], **beside(i)} for i in range(60))
    telemetry = b"".join(canonical_json(line) + b"\n" for line in lines)
    return bundle(folder / f"{name}.tar", run_id=name, uuid=name, telemetry=telemetry, **more)


def disturbed(folder: Path, name: str = "disturbed", **more: Any) -> Path:
    return made(folder, name, lambda i: {"load": 1.0, "others": True} if i > 30 else {"load": 1.0}, **more)


def shared(second: int) -> dict[str, Any]:
    return {"load": 1.0, "gpus": [card(second) | {"held_bytes": 25 << 29}]}


MARKED: dict[str, Callable[[Path], Path]] = {
    "DISTURBED": disturbed,
    "LOADED": lambda folder: made(folder, "loaded", lambda _: {"load": 12.0}),
    "SHARED": lambda folder: made(folder, "shared", shared),
    "UNSTEADY": lambda folder: made(folder, "unsteady", spread=WIDE),
}
SEEN = {
    "DISTURBED": "another bench measured beside it, 49% of the time",
    "LOADED": "a load of 12 on 16 CPUs, from other work",
    "SHARED": "other processes held 12.5 GiB of GPU 0",
    "UNSTEADY": "its 95% interval is 169% of the figure wide",
}


def shown_lines(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("kind", MARKED)
def test_a_mark_is_in_every_output(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, seen = MARKED[kind](tmp_path), SEEN[kind]
    assert main(["verify", str(path)]) == 0
    told = capsys.readouterr().out
    assert f"\n{kind:10} 1 trial: {seen}" in told
    assert re.search(
        rf"^result +tiny-gpt-neox: [\d.]+ ±[\d.]+ days \({kind}\) on 1 device", told, re.MULTILINE
    )
    assert main(["verify", str(path), "--json"]) == 0
    (marks,) = json.loads(capsys.readouterr().out)[0]["recomputed"]["marks"].values()
    assert [(mark["kind"], mark["text"]) for mark in marks] == [(kind, seen)]
    found = collect(CompareArguments((path,)))
    for text in (table(found), page(found), markdown(found).replace("\\", "")):
        assert f"{kind}: see below" in text
        assert f"{kind}: 1x H100 80GB HBM3, {seen}, while its figure was measured" in " ".join(text.split())
    assert f"{kind}: {seen}" in csv_text(found)
    assert f'"kind": "{kind}"' in json_text(found)
    lines = shown_lines(capsys, "compare", path, "--settings")
    assert f"{kind}  1 trial: {seen}" in "\n".join(lines)
    assert [line.endswith(f" {kind}") for line in lines if line.startswith("*   ")] == [True]
    (row,) = (line for line in shown_lines(capsys, "show", path) if line.startswith("*   "))
    assert row.endswith(kind)
    other = made(tmp_path, "other")
    main(["reproduce", str(path), "--with", str(other)])
    assert f"{kind.lower()} there: {seen}" in capsys.readouterr().out
    pushed = Result("n01", outcome="done", verdict=verify_bundle(path, recompute))
    assert f"   {kind}: {seen}" in ended(pushed)


@pytest.mark.parametrize("kind", MARKED)
def test_an_exported_script_states_its_days_with_their_mark(
    kind: MarkKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first lines of README.md or, of the single file, in its docstring; and while it is written."""
    path, sentence = MARKED[kind](tmp_path), f"{kind}: {SEEN[kind]}: {MEANING[kind]}."
    for form, name in (("script", "README.md"), ("standalone", "train.py")):
        assert main(["export", str(path), "--to", form, str(tmp_path / form)]) == 0
        assert sentence in capsys.readouterr().err
        head = " ".join((tmp_path / form / name).read_text().split())
        assert f" days ({kind}), " in head
        assert sentence in head
    sound = made(tmp_path, "sound")
    assert main(["export", str(sound), "--to", "script", str(tmp_path / "sound")]) == 0
    assert kind not in capsys.readouterr().err + (tmp_path / "sound/README.md").read_text()


def test_the_runner_up_of_an_export_is_named_with_its_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), measured(0.49, WIDE))]
    path = bundle(tmp_path / "a.tar", settings=settings)
    assert main(["export", str(path), "--to", "script", str(tmp_path / "b")]) == 0
    assert re.search(r"kernels at micro-batch 16: .* days \(UNSTEADY\); --setting", capsys.readouterr().err)
    shown = table(collect(CompareArguments((path,))))
    assert re.search(r"next: kernels at micro-batch 16, [\d.]+ ±[\d.]+ days \(UNSTEADY\)", shown)


@pytest.mark.parametrize("kind", MARKED)
def test_a_plot_shows_the_mark_of_a_machine(kind: str, tmp_path: Path) -> None:
    MARKED[kind](tmp_path)
    bundle(tmp_path / "two.tar", run_id="two", uuid="two", gpus=2, pass_seconds=0.6)
    found = collect(CompareArguments((tmp_path,), html=tmp_path / "x.html"))
    (part,) = found.parts
    plots = [*money.plots(part, found), *scaling.plots(part, found)]
    assert len(plots) == 3
    for plot in plots:
        assert f"({kind})" in plot.description
        assert f"({kind})" in plot.body
    points = predictions._measured(part.entries, found.currency)
    assert [point.words.count(f"days ({kind})") for point in points if point.marked] == [1, 1]


def test_a_plot_shows_the_marks_of_settings(tmp_path: Path) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), measured(0.3, WIDE)), (("tf32",), 0.4)]
    found = collect(CompareArguments((bundle(tmp_path / "a.tar", settings=settings),)))
    for kind in (speedups, settings_plots):
        (plot,) = kind.plots(found.parts[0], found)
        for text in (plot.description, plot.body):
            assert text.count("(UNSTEADY)") == 1


def test_a_plot_of_all_models_shows_the_mark_of_a_cell(tmp_path: Path) -> None:
    of = manifest(models=["tiny-gpt-neox", "tiny-vit"])
    bundle(tmp_path / "a.tar", of=of, hot=True)
    bundle(tmp_path / "b.tar", of=of, gpus=2, run_id="bbbb", uuid="B")
    plot = overall_plot(collect(CompareArguments((tmp_path,))))
    assert plot is not None
    assert plot.description.count("days (SLOWED), ") == 2


@pytest.mark.parametrize("kind", MARKED)
def test_a_marked_figure_is_never_ranked_above_one_without(kind: str, tmp_path: Path) -> None:
    """The marked machine is faster here, and cheaper: a decision for it would rest on a wrong figure."""
    marked = MARKED[kind](tmp_path)
    slower = made(tmp_path, "slower", pass_seconds=1.5)
    found = collect(CompareArguments((marked, slower), deadline_days=3.0, budget=1e6))
    first, last = found.parts[0].entries
    assert (first.row.path, last.row.path) == (str(slower), str(marked))
    assert (first.place.rank, last.place.rank) == (1, 2)
    assert any(offer.marks for offer in first.offers)
    assert not any(offer.marks for offer in last.offers)


def test_a_marked_figure_answers_a_question_that_no_other_answers(tmp_path: Path) -> None:
    """A disturbed machine that meets the deadline would meet it undisturbed."""
    marked, slower = disturbed(tmp_path), made(tmp_path, "slower", pass_seconds=2.0)
    found = collect(CompareArguments((marked, slower), deadline_days=0.1))
    (offer,) = (o for e in found.parts[0].entries for o in e.offers if o.kind == "rent" and o.marks)
    assert offer.marks == ("cheapest by the deadline",)
    (line,) = (line for line in table(found).splitlines() if "<- cheapest" in line)
    assert "DISTURBED: see below" in line


def test_a_machine_is_represented_by_a_figure_without_marks(tmp_path: Path) -> None:
    fast = disturbed(tmp_path, name="one", pass_seconds=0.4)
    sound = bundle(tmp_path / "sound.tar", run_id="sound", uuid="one")
    (part,) = collect(CompareArguments((fast, sound))).parts
    assert [entry.row.path for entry in part.entries] == [str(sound)]
    (why,) = part.apart[0].reasons
    assert why.startswith("DISTURBED, 0.037 days: the same machine has a run in which it was not: ")


def test_a_steady_setting_represents_a_run_before_an_unsteady_faster_one(tmp_path: Path) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), measured(0.3, WIDE))]
    path = bundle(tmp_path / "a.tar", settings=settings)
    (entry,) = collect(CompareArguments((path,))).parts[0].entries
    assert entry.row.best.setting == ()
    assert entry.row.marks == ()


def test_every_output_calls_the_steady_setting_the_fastest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), measured(0.3, WIDE))]
    path = bundle(tmp_path / "a.tar", settings=settings)
    for command in (["show"], ["compare", "--settings"]):
        assert main([*command, str(path)]) == 0
        (starred,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("*   "))
        assert starred.split()[1] == "naive"
    assert main(["verify", str(path)]) == 0
    assert "naive, the fastest of 2 trials" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(path), "--to", "script", str(tmp_path / "script")]) == 0
    assert "naive: " in capsys.readouterr().err


def test_a_marked_row_supports_no_estimate(tmp_path: Path) -> None:
    (part,) = collect(CompareArguments((disturbed(tmp_path),), estimate=("8xh100",))).parts
    assert part.guesses[0].days is None
    assert part.guesses[0].basis == "every run of gpt_neox is marked: DISTURBED"


def test_the_committed_runs_beside_a_compilation_are_marked_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """22 of the 32 cores compiled (docs/accuracy.md); other runs load a machine by compiling themselves."""
    assert main(["verify", str(COMPILED_BESIDE)]) == 0
    assert "LOADED     1 trial: a load of 24.4 on 32 CPUs" in capsys.readouterr().out
    assert main(["verify", *map(str, sorted((RESULTS / "settings-h200").glob("*.tar")))]) == 0
    assert "LOADED" not in capsys.readouterr().out


def lines(*readings: dict[str, Any]) -> list[bytes]:
    return [canonical_json({"at": i, "trial": "t", "gpus": []} | said) for i, said in enumerate(readings)]


@pytest.mark.parametrize(
    ("cpus", "said", "kinds"),
    [
        (GPUS, {"load": 11.2}, []),
        (GPUS, {"load": 11.3}, ["LOADED"]),
        (GPUS, {"load": 11.3, "cpus": 64}, []),  # of a container, whose host has more
        (CPU, {"load": 31.9}, []),
        (CPU, {"load": 32.1}, ["LOADED"]),
        (GPUS, {"load": 1, "others": True}, ["DISTURBED"]),
        (GPUS, {"load": 40, "others": True}, ["DISTURBED", "LOADED"]),
        (GPUS, {"gpus": [{}, {"held_bytes": 1}]}, ["SHARED"]),
        (GPUS, {"gpus": [{"held_bytes": 0}, {"held_bytes": "9"}, 7]}, []),
        (GPUS, {"gpus": {"held_bytes": 9}}, []),
        (GPUS, {"load": "40", "others": "yes", "cpus": -1}, []),
        (GPUS, {}, []),
    ],
)
def test_company_is_judged_by_other_benches_and_by_the_load_of_each_cpu(
    cpus: Cpus, said: dict[str, Any], kinds: list[str]
) -> None:
    found = marks_of_other_work(lambda: [*lines(*[said] * 5), b'{"at":3,"tr'], {"t": (0, 9)}, cpus)
    assert [mark.kind for mark in found.get("t", ())] == kinds


def test_the_gpu_of_which_others_held_most_is_named() -> None:
    gib = 1 << 30
    said = lines(
        *({"gpus": [{"held_bytes": one * gib}, {"held_bytes": two * gib}]} for one, two in ((3, 4), (9, 5)))
    )
    (mark,) = marks_of_other_work(lambda: said, {"t": (0, 9)}, GPUS)["t"]
    assert mark == Mark("SHARED", "other processes held 9.0 GiB of GPU 0", 9 * gib)
    assert [*marks_of_other_work(lambda: said, {"t": (5, 9)}, GPUS)] == ["t"], "a trial between two readings"
    assert marks_of_other_work(lambda: said, {"u": (0, 9)}, GPUS) == {}, "of another trial"


def test_only_the_time_of_the_steps_counts() -> None:
    said = lines({"others": True}, {}, {}, {}, {"load": 99.0})
    assert marks_of_other_work(lambda: said, {"t": (1.6, 3)}, GPUS) == {}
    assert marks_of_other_work(lambda: lines({"load": 99.0}), {"u": (0, 9)}, GPUS) == {}, "of another trial"


def test_a_trial_shorter_than_the_time_between_two_readings_is_disturbed_too() -> None:
    """The readings just before and after it belong to other trials, or to none."""
    said = lines(*[{"others": True, "trial": None}] * 4)
    spans = {"t": (1.2, 1.5), "u": (1.6, 1.8), "later": (9.0, 9.1)}
    found = marks_of_other_work(lambda: said, spans, GPUS)
    assert {name: [mark.kind for mark in marks] for name, marks in found.items()} == {
        "t": ["DISTURBED"],
        "u": ["DISTURBED"],
    }


def test_the_search_of_a_block_finds_what_marks_are_made_of() -> None:
    assert top_load(b"\n".join(lines({"load": 1.5}, {"load": 0.25}))) == 1.5
    assert top_load(b"\n".join(lines({"load": 1.5}, {"others": True}))) == float("inf")
    assert top_load(b"\n".join(lines({"load": 1.5}, {"gpus": [{"held_bytes": 7}]}))) == float("inf")
    assert top_load(b"{}") == 0.0


@pytest.mark.parametrize(("half_width", "marked"), [(4.9, False), (5.0, True), (8.3, True)])
def test_an_interval_as_wide_as_its_figure_is_no_figure(half_width: float, marked: bool) -> None:
    assert (unsteady(Interval(10.0, half_width)) is not None) == marked


def test_a_line_tells_the_worst_of_each_kind() -> None:
    marks = {str(i): (Mark("LOADED", f"a load of {i}", i),) for i in (3, 9, 5)}
    assert [*mark_lines(marks)] == [
        ("LOADED", "3 trials, at worst: a load of 9: the idle machine may be faster")
    ]


def test_the_text_of_a_figure_has_the_kinds_of_its_marks() -> None:
    assert marked_text("1 day", ["SLOWED", "UNSTEADY"]) == "1 day (SLOWED, UNSTEADY)"
    assert marked_text("1 day", []) == "1 day"
