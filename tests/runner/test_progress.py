"""The output of a run while it measures: its live line, the marks so far, the time left, messages before."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import termios
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.live_line import LinePart, LiveLine, fitted
from bench.planning.plan import make_plan
from bench.records.estimate import estimate
from bench.records.marks import Cpus
from bench.records.text import interval_text
from bench.records.trial import Ceiling, Skipped, StepSample
from bench.runner.run.job_so_far import JobSoFar
from bench.runner.run.progress import DRAWN_EVERY_SECONDS, MOST_SHARE, Progress, Throttle, skipped_lines
from bench.runner.run.time_left import about_text, seconds_left
from bench.runner.trial.stopping_rules import MIN_ROUNDS
from bench.training.methods import Target
from tests.builders import measurement, trial
from tests.report.made import manifest
from tests.terminals import on_terminal

CPUS = Cpus(4, "cuda")
TRIAL = trial()  # a step of two passes
STEADY = [(1, 0.1), (2, 0.2), (1, 0.101), (2, 0.201)] * MIN_ROUNDS
WILD = [(1, 0.1), (2, 0.2), (1, 0.1), (2, 6.0)] * MIN_ROUNDS
PARTS = [
    LinePart("tiny-gpt-neox", 97),
    LinePart("compile-blocks", 60),
    LinePart("0.0570 ±0.0013 s/step", 99),
    LinePart("71,900 tokens/s", 80),
    LinePart("31% of limit", 70),
    LinePart("419 MiB", 50),
    LinePart("loss 6.249", 40),
    LinePart("about 12 min left", 85),
]


def test_skipped_settings_are_one_line_per_model() -> None:
    skipped = [
        Skipped("large", ("zero-1",), "zero-1", "needs about 53 GiB; there are 24"),
        Skipped("small", ("fsdp-2",), "fsdp-2", "takes more than one GPU"),
        Skipped("large", ("zero-2",), "zero-2", "needs about 53 GiB; there are 24"),
        Skipped("larger", ("zero-1",), "zero-1", "needs about 90 GiB; there are 24"),
        Skipped("larger", ("zero-2",), "zero-2", "needs about 80 GiB; there are 24"),
    ]
    assert list(skipped_lines(skipped)) == [
        "skipped  large  2 settings: needs about 53 GiB; there are 24",
        "skipped  small  fsdp-2: takes more than one GPU",
        "skipped  larger  2 settings: needs about 90 GiB; there are 24 (and 1 other reason)",
    ]


@pytest.mark.parametrize(("methods", "told"), [("guided", "1 model"), (["naive"], "1 setting")])
def test_a_run_of_one_model_or_setting_begins_in_the_singular(methods: object, told: str) -> None:
    plan = make_plan(manifest(methods=methods), Target("cpu", 1, 1 << 34, "some CPU"))
    stream = io.StringIO()
    course: Any = SimpleNamespace(plan=plan, outcomes={})
    Progress(LiveLine(stream)).start("a1b2c3", course)
    assert stream.getvalue().splitlines()[0] == f"run a1b2c3   {told}   some CPU"


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (20, "0.0570 ±0.0013 s/step"[:20]),
        (39, "tiny-gpt-neox  0.0570 ±0.0013 s/step"),
        (79, "tiny-gpt-neox  0.0570 ±0.0013 s/step  71,900 tokens/s  about 12 min left"),
        (119, "  ".join(part.text for part in PARTS if part.weight > 40)),
        (200, "  ".join(part.text for part in PARTS)),
    ],
)
def test_a_narrow_line_lacks_what_matters_least(room: int, shown: str) -> None:
    assert fitted(PARTS, room) == shown


def in_flight(steps: list[tuple[int, float]], readings: list[dict[str, object]] = []) -> JobSoFar:  # noqa: B006
    """Return a trial whose steps have been timed since the unix time 1000."""
    job = JobSoFar((TRIAL.model.name, "naive", "micro-batch 4"), 0.0, TRIAL)
    for event in (
        {"phase": "first steps"},
        {"step": 2, "loss": 6.5},
        {"flops": 3000.0},
        {"phase": "measure"},
    ):
        job.add(event, 1000.0)
    for passes, seconds in steps:
        job.add({"step": passes, "seconds": seconds}, 1001.0)
    for i, reading in enumerate(readings):
        whole = {"at": 1001.0 + i, "trial": TRIAL.id, "gpus": [], **reading}
        job.add_reading(json.dumps(whole, separators=(",", ":")).encode(), CPUS)
    return job


def test_the_line_says_that_a_silent_job_compiles_until_its_next_event() -> None:
    job = JobSoFar((TRIAL.model.name,), 0.0, TRIAL)
    job.add({"phase": "build"}, 1000.0)
    job.add({"compiling": True}, 1001.0)
    assert "build, compiling 9 s" in [part.text for part in job.parts(9.0, None, ())]
    job.add({"phase": "first steps"}, 1002.0)
    assert "first steps 10 s" in [part.text for part in job.parts(10.0, None, ())]


def kinds(job: JobSoFar) -> list[str]:
    return [mark.kind for mark in job.marks(job.step, CPUS, 1)]


def test_the_figures_so_far_are_those_of_the_estimate() -> None:
    job = in_flight(STEADY)
    ceiling = Ceiling("matmul-fp32", 0, "FLOP/s", 10**6, (1.0,))
    job.ceilings = (ceiling,)
    samples = [StepSample(*step) for step in STEADY]
    told = measurement(samples)
    final = estimate(TRIAL, told, told.flops, [ceiling])
    assert final is not None and final.utilisation is not None
    texts = [part.text for part in job.parts(1.0, job.step, ())]
    assert f"{interval_text(final.step_seconds)} s/step" in texts
    assert f"{100 * final.utilisation:.0f}% of limit" in texts
    assert f"{final.units_per_second:.0f} tokens/s" in texts
    assert "loss 6.5" in texts


def test_before_two_rounds_there_is_no_figure_of_a_step() -> None:
    job = in_flight(STEADY[:2])
    assert job.step is None
    assert not any("s/step" in part.text for part in job.parts(1.0, job.step, ()))


SLOWED = {"gpus": [{"throttle_reasons": 0x40, "sm_mhz": 405}]}
COMPANY = [({"load": 8.0, "cpus": 4}, "LOADED"), ({"others": True}, "DISTURBED"), (SLOWED, "SLOWED")]


@pytest.mark.parametrize(
    ("reading", "kind"),
    [({"load": 8.0, "cpus": 4}, "LOADED"), ({"others": True}, "DISTURBED"), (SLOWED, "SLOWED")],
)
def test_company_and_heat_are_said_while_steps_are_timed(reading: dict[str, object], kind: str) -> None:
    assert kinds(in_flight(STEADY, [{"load": 1.0, "cpus": 4}] * 3)) == []
    assert kinds(in_flight(STEADY, [reading] * 3)) == [kind]


def test_company_before_the_timed_steps_is_none() -> None:
    assert kinds(in_flight(STEADY, [{"at": 900.0, "load": 8.0, "cpus": 4, "others": True}])) == []


def test_unsteady_steps_are_said_once_there_are_enough_of_them() -> None:
    assert kinds(in_flight(WILD)) == ["UNSTEADY"]
    assert kinds(in_flight(WILD[: 2 * (MIN_ROUNDS - 1)])) == []
    assert kinds(in_flight(STEADY)) == []


@pytest.mark.parametrize(
    ("decided", "undecided", "proofs", "until", "seconds"),
    [
        (0, 5, 0, None, None),  # nothing tells yet
        (0, 5, 360, 900, 900),
        (2, 6, 0, None, 300),
        (2, 6, 360, None, 660),
        (2, 6, 360, 120, 120),
        (5, 0, 360, None, 360),
        (5, 0, 0, None, None),  # what comes after is short
    ],
)
def test_the_time_left(
    decided: int, undecided: int, proofs: float, until: float | None, seconds: float | None
) -> None:
    assert seconds_left(100, decided, undecided, proofs, until) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12, "under a minute left"),
        (200, "about 3 min left"),
        (1000, "about 15 min left"),
        (3590, "about 60 min left"),
        (5000, "about 1.5 h left"),
        (40_000, "about 11 h left"),
    ],
)
def test_the_time_left_has_no_false_precision(seconds: float, text: str) -> None:
    assert about_text(seconds) == text


def test_looking_is_rare_and_takes_a_hundredth_of_a_core() -> None:
    now, spent, done = [0.0], [0.0], [0]
    throttle = Throttle(DRAWN_EVERY_SECONDS, lambda: now[0], lambda: spent[0])

    def costly() -> None:
        spent[0] += 0.05
        done[0] += 1

    for _ in range(10_000):  # a hundred seconds of a hundred steps each
        throttle.do(costly)
        now[0] += 0.01
    assert done[0] > 1
    assert spent[0] <= 100 * MOST_SHARE + 0.05
    cheap = Throttle(DRAWN_EVERY_SECONDS, lambda: now[0], lambda: 0.0)
    done[0] = 0
    for _ in range(1000):
        cheap.do(costly)
        now[0] += 0.01
    assert 10 <= done[0] <= 10 / DRAWN_EVERY_SECONDS + 1


def draw_and_print() -> int:
    line = LiveLine(sys.stderr)
    line.draw(PARTS)
    line.print("a result that is printed above: DISTURBED\x1b]0;forged\x07")
    line.draw([LinePart("a model\nof two lines", 1)])
    line.clear()
    return 0


DRAWN = re.compile(r"\r\x1b\[K([^\r\n]*)")


@pytest.mark.parametrize("columns", [40, 80, 100, 120])
@pytest.mark.parametrize("spelled_in", ["utf-8", "ascii"])
def test_on_a_terminal_it_is_one_line_of_any_width(columns: int, spelled_in: str) -> None:
    shown = on_terminal(draw_and_print, columns, {"NO_COLOR": "1", "SPELLED_IN": spelled_in})
    drawn = DRAWN.findall(shown.text)
    assert "s/step" in drawn[0]
    assert all(len(line) < columns for line in drawn)
    assert [line for line in drawn if "two lines" in line] == ["a model\\nof two lines"]
    assert shown.text.endswith("\r\x1b[K")
    assert "\x1b]" not in shown.text
    assert "\x1b[33m" not in shown.text


def test_marks_have_a_colour_where_the_terminal_has() -> None:
    assert "\x1b[33mDISTURBED\x1b[0m" in on_terminal(draw_and_print, 80, {}).text


def test_a_dumb_terminal_gets_lines_alone() -> None:
    shown = on_terminal(draw_and_print, 40, {"TERM": "dumb"})
    assert shown.text == "a result that is printed above: DISTURBED\\x1b]0;forged\\x07\n"


def test_the_line_follows_the_width_of_the_terminal() -> None:
    def resized() -> int:
        line = LiveLine(sys.stderr)
        for columns in (120, 40, 80):
            termios.tcsetwinsize(2, (24, columns))
            line.draw(PARTS)
        return 0

    drawn = DRAWN.findall(on_terminal(resized, 100, {"NO_COLOR": "1"}).text)
    assert drawn == [fitted(PARTS, columns - 1) for columns in (120, 40, 80)]


def test_a_terminal_that_is_lost_costs_no_run() -> None:
    def lost() -> int:
        from bench.cli.stdio import wrapped_streams

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with wrapped_streams():
            line = LiveLine(sys.stderr)
            line.draw(PARTS)
            gone, new = os.openpty()
            os.dup2(new, 2)
            os.close(new)
            os.close(gone)
            line.draw(PARTS)
            line.print("a result")
        return 7

    assert on_terminal(lost, 80, {}).code == 7


def show_many_steps() -> int:
    progress = Progress(LiveLine(sys.stderr))
    progress.begin(TRIAL.id, ["model", "naive"], TRIAL)
    for event in chain(({"phase": "measure"},), repeat({"step": 1, "seconds": 0.1}, 5000)):
        progress.event(event)
    progress.stop()
    progress.event(None)  # the fork server ends
    return 0


def test_many_steps_are_few_drawings_and_nothing_is_left_of_them() -> None:
    shown = on_terminal(show_many_steps, 80, {"NO_COLOR": "1"})
    drawn = DRAWN.findall(shown.text)
    assert 1 <= len([line for line in drawn if line]) < 50
    assert drawn[-1] == ""


def test_in_a_pipe_there_is_no_live_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_many_steps() == 0
    assert capsys.readouterr().err == ""
