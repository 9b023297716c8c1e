"""The run between two trials, and after all models are decided."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.base.stamps import utc
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from bench.planning.manifest import parse_manifest
from bench.planning.plan import make_plan, target_of
from bench.planning.search.next_trial import unproven
from bench.records.fastest import without_figures
from bench.records.floor import Floor
from bench.records.gradients import MOST_WRONG, GradientCheck
from bench.records.run_results import samples_bytes
from bench.records.trial import (
    Ceiling,
    Crashed,
    Failure,
    Gpu,
    Image,
    Measured,
    NodeFacts,
    Outcome,
    OutOfMemory,
    StepSample,
    Trial,
)
from bench.report.text.run_table import results_table
from bench.runner.processes.jobs import Nodes
from bench.runner.processes.supervisor import Limits
from bench.runner.run import measure_plan as loop
from bench.runner.run.events import RunStopped, event_from_json
from bench.runner.run.execute import _measure, _open_run
from bench.runner.run.journal import Journal
from bench.runner.run.measure_plan import settle, tell_of_others
from bench.runner.run.progress import Progress
from bench.runner.run.run_state import Run
from bench.training.methods import arithmetic
from bench.training.models import counts_of
from tests.builders import measurement
from tests.bundles import packed

GIB = 1 << 30
METER = SimpleNamespace(
    used_bytes=list, note_held=lambda gpus: None, sample=lambda _: None, close=lambda: None
)
NODE = NodeFacts("EPYC", 1024, 2**39, "Debian 12", "6.1", "3.11.2", (), None)
GUIDED = {
    "schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"],
    "timing": {"measure_seconds": 8, "target_percent": 1},
}  # fmt: skip


AGREES = GradientCheck((), 28, 0.004, "embed_in.weight", 0.03)
DIFFERS = GradientCheck((), 28, 150_000.0, "layers.1.attention.query_key_value.weight", 200_000.0)


class Guessing:
    """A supervisor whose samples take a second; in the second trial they seem to take less.

    The difference is uncertain: steps of one pass vary by a third until they are measured for longer.
    """

    nodes: Nodes | None = None

    def __init__(self, second: Outcome | None = None) -> None:
        self.asked: list[Trial] = []
        self.floors: list[Trial] = []
        self.checked: list[Trial] = []
        self.second = second

    def floor(self, trial: Trial, *_: Any) -> Floor | Failure:
        self.floors.append(trial)
        a_pass = trial.micro_batch * 1.0
        return Floor(7, 0.5 * a_pass, 0.0, 0.25 * a_pass, 0.0)

    def gradient_check(self, trial: Trial, *_: Any) -> GradientCheck | Failure:
        self.checked.append(trial)
        return AGREES

    def ceilings(self, *_: Any) -> tuple[Ceiling, ...]:
        return (Ceiling("matmul-fp32", 0, "FLOP/s", 10**15, (1.0,)),)

    def trial(self, trial: Trial, *_: Any) -> Outcome:
        self.asked.append(trial)
        again = trial.timing.measure_seconds > 8
        if again and self.second:
            return self.second
        unsure = len(self.asked) == 2
        a_pass = trial.micro_batch * (0.9 if unsure else 1.02 if again else 1.0)
        off = (0.0, 0.3 * a_pass) if unsure else (0.0, 0.001)
        counts = sorted({1, min(2, trial.accumulation)})
        steps = [StepSample(n, a_pass * n + off[i % 2]) for i in range(6) for n in counts]
        flops = arithmetic(trial.setting, trial.model, counts_of(trial.model))
        return Measured(measurement(steps, flops=flops))


@contextmanager
def begun(folder: Path, node: NodeFacts = NODE, **changes: Any) -> Iterator[Run]:
    manifest = parse_manifest(json.dumps(GUIDED | changes).encode(), "m.json")
    folder.mkdir(exist_ok=True)
    with Journal(folder) as journal:
        run = Run(manifest, node, make_plan(manifest, target_of(node, 1)), journal, folder)
        _open_run(run)
        yield run


def searched(
    run: Run,
    fake: Guessing,
    monkeypatch: pytest.MonkeyPatch,
    budget: float | None = None,
    nodes: Nodes | None = None,
) -> str | None:
    supervised(fake, monkeypatch)
    return loop.measure(run, Progress(), budget, nodes)


def supervised(fake: Guessing, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def supervisor(*_: Any, **__: Any) -> Iterator[Guessing]:
        yield fake

    monkeypatch.setattr(loop, "Supervisor", supervisor)


def test_an_uncertain_finalist_is_measured_again_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Guessing()
    with begun(tmp_path) as run:
        assert searched(run, fake, monkeypatch) is None
        assert capsys.readouterr().err.count("measured again") == 1
        *first, last = fake.asked
        assert {trial.timing.measure_seconds for trial in first} == {8}
        assert last.timing.measure_seconds > 8
        unsure = first[1]
        assert (last.setting, last.micro_batch) == (unsure.setting, unsure.micro_batch)
        results = run.results(None)
    assert len(results.trials) == len(first), "one row a trial"
    (winner,) = results.winners
    assert winner.trial != unsure.id
    with begun(tmp_path) as run:  # --resume reads the journal in this way
        assert run.results(None).trials == results.trials
        assert searched(run, resumed := Guessing(), monkeypatch) is None
    assert resumed.asked == []


def bundle_of(run: Run, path: Path, change: Callable[[list[bytes]], object] = len) -> Path:
    results = run.results(None)
    samples = samples_bytes(run.trials(), run.earlier).splitlines(keepends=True)
    change(samples)
    files = {
        "manifest.json": run.manifest.data, "results.json": results.to_bytes(),
        "samples.jsonl": b"".join(samples),
    }  # fmt: skip
    begun, ended = utc(results.run.started_at), utc(results.run.ended_at)
    node = {"gpus": [], "driver": NODE.driver, "cpu": NODE.cpu, "image": None}
    return packed(path, files, run_id=run.id, started_at=begun, ended_at=ended, node=node)


def test_the_first_of_two_measurements_stays_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path / "run") as run:
        searched(run, Guessing(), monkeypatch)
        results, path = run.results(None), bundle_of(run, tmp_path / "one.tar")
        (again,) = (trial for trial in results.trials if trial.earlier)
        assert again.earlier and again.estimate
        assert again.earlier.half_width > again.estimate.days.half_width
        assert "1 trial measured by two processes" in results_table(results)
        verdict = verify_bundle(path, recompute)
        # Six steps at each count of passes: the step of one pass has one count, the trial measured twice two.
        assert verdict.contents.samples == 6 + 2 * 12

        def first_only(lines: list[bytes]) -> None:
            lines[:] = [line for line in lines if b'"earlier"' in line]

        def without_first(lines: list[bytes]) -> None:
            lines[:] = [line for line in lines if b'"earlier"' not in line]

        def first_twice(lines: list[bytes]) -> None:
            lines[:] = [line for line in lines for _ in range(1 + (b'"earlier"' in line))]

        for change, why in (
            (first_only, "only the first of two measurements"),
            (without_first, "does not follow from the samples"),
            (first_twice, "for the second time"),
        ):
            with pytest.raises(VerificationFailed, match=why):
                verify_bundle(bundle_of(run, tmp_path / "other.tar", change), recompute)


def test_a_failed_second_measurement_keeps_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Guessing(Crashed("the node is tired"))
    with begun(tmp_path) as run:
        assert searched(run, fake, monkeypatch) is None
        assert all(trial.estimate and not trial.earlier for trial in run.results(None).trials)


def test_a_budget_spent_before_a_second_measurement_leaves_no_model_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: dict[str, dict[str, Any]] = {}
    with begun(tmp_path / "a") as run:
        assert searched(run, Guessing(), monkeypatch) is None
        for event in run.journal.events:
            if event["event"] == "trial":
                first.setdefault(event["id"], event)
    with begun(tmp_path / "b") as run:
        for event in first.values():
            run.record(event_from_json(event))
        assert searched(run, late := Guessing(), monkeypatch, budget=0) is None
    assert late.asked == []


class Deadly(Guessing):
    """A supervisor in which one trial kills the run."""

    def trial(self, trial: Trial, *_: Any) -> Outcome:
        if trial.setting:
            raise SystemExit("kill -9")
        return super().trial(trial)


@pytest.mark.parametrize("politely", [False, True])
def test_a_trial_that_kills_the_run_every_time_is_given_up(
    politely: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may kill a whole container for lack of memory, after which it is started again."""
    for _ in range(3):
        with begun(tmp_path) as run, pytest.raises(SystemExit):
            searched(run, Deadly(), monkeypatch)
        if politely:  # an interrupt or a spent budget does not count against the trial
            with begun(tmp_path) as run:
                run.record(RunStopped("interrupted"))
    with begun(tmp_path) as run, pytest.raises(SystemExit):  # another setting is tried next
        searched(run, Deadly(), monkeypatch)
    failures = [trial.failure for trial in run.results(None).trials if trial.failure]
    assert failures == [] if politely else [Crashed("the run or its machine died during it, 3 times")]


class Full(Guessing):
    """A supervisor in which a given number of trials find room for temporary files."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def trial(self, trial: Trial, *_: Any) -> Outcome:
        if len(self.asked) == self.room:
            raise EnvironmentCannot("no room, 0 B free", where="/scratch", advice="make room")
        return super().trial(trial)


def test_a_full_scratch_disk_ends_the_run_and_fails_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):  # more often than a trial may kill a run
        with begun(tmp_path) as run, pytest.raises(EnvironmentCannot, match="no room"):
            measured(run, Full(0), monkeypatch)
    with begun(tmp_path) as run:
        stopped = measured(run, Full(2), monkeypatch)
    assert stopped == "/scratch: no room, 0 B free, all models decided"
    assert "make room" in capsys.readouterr().err
    with begun(tmp_path) as run:  # after some space was freed
        assert len(run.outcomes) == 2
        assert measured(run, Guessing(), monkeypatch) is None
        assert all(trial.failure is None for trial in run.results(None).trials)


def measured(run: Run, fake: Guessing, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Measure as a run does; it ends with a bundle if anything was measured."""
    supervised(fake, monkeypatch)
    return _measure(run, Progress(), None, None)


class Hung(Guessing):
    """A supervisor whose measurement of limits takes all the time it is given."""

    def ceilings(self, *asked: Any) -> tuple[Ceiling, ...]:
        limits: Limits = asked[-1]
        assert limits.seconds <= 0.1
        time.sleep(limits.seconds)
        raise EnvironmentCannot("no ceilings: timed-out")


def test_a_budget_spent_on_the_limits_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(tmp_path) as run:
        stopped = searched(run, Hung(), monkeypatch, budget=0.1)
    assert stopped == "the budget of 0 s is spent, 1 of 1 models undecided"


class Apart(Guessing):
    """Two nodes: the first in an image, the other with its installed software."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str | None] = []

    def facts(self, *_: Any) -> tuple[NodeFacts, ...]:
        return replace(NODE, image=Image("cuda13", "sha256:1", "sha256:d", "sha256:abc")), NODE

    def dismiss(self, *arguments: Any) -> None:
        self.told.append(arguments[-1])


def test_a_node_in_an_image_and_one_without_do_not_train_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Apart()
    why = "the nodes differ: image sha256:abc on node 0, none on node 1"
    with begun(tmp_path) as run, pytest.raises(EnvironmentCannot, match=why):
        searched(run, fake, monkeypatch, nodes=Nodes(2, 0, "127.0.0.1:0", "abc"))
    assert fake.told == [why]


class Unmet(Guessing):
    """Nodes that cannot connect to each other."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def facts(self, *_: Any) -> tuple[NodeFacts, ...]:
        raise EnvironmentCannot(f"no facts: {self.why}", where="nodes.txt")


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("timed-out: 600.0, start", "open all ports"),
        ("crashed: two are node 1\n  each needs its own", None),
    ],
)
def test_nodes_that_cannot_connect_are_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, advice: str | None
) -> None:
    with (
        begun(tmp_path) as run,
        pytest.raises(EnvironmentCannot, match=f"come together at .*{why}") as raised,
    ):
        searched(run, Unmet(why), monkeypatch, nodes=Nodes(2, 0, "127.0.0.1:0", "abc"))
    assert (advice in raised.value.advice) if advice else raised.value.advice is None  # type: ignore[operator]


class TooGood(Guessing):
    """A supervisor whose second trial exceeds the machine's measured limit."""

    def ceilings(self, *_: Any) -> tuple[Ceiling, ...]:
        # A trial does 3000 operations per sample, and a sample takes a second.
        return (Ceiling("matmul-fp32", 0, "FLOP/s", 3100, (1.0,)),)

    def trial(self, trial: Trial, *_: Any) -> Outcome:
        self.asked.append(trial)
        a_pass = trial.micro_batch * (0.5 if len(self.asked) == 2 else 1.0 + 0.02 * len(trial.setting))
        return Measured(
            measurement([StepSample(n, a_pass * n + 0.001 * (i % 2)) for i in range(6) for n in (1, 2)])
        )


def test_an_implausible_trial_is_never_the_fastest_and_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = TooGood()
    with begun(tmp_path) as run:
        assert searched(run, fake, monkeypatch) is None
        assert capsys.readouterr().err.count("IMPLAUSIBLE") == 1
        (winner,) = run.results(None).winners
        impossible = fake.asked[1].id
        assert len(fake.asked) > 2, "nothing is ruled out by it"
        proven = unproven(run.plan, run.plausible_outcomes, ())
    assert winner.trial != impossible
    assert proven is not None
    assert proven.id == winner.trial


# Floors


def shown(run: Run) -> list[str]:
    """Return the lines about floors under the table of a run's results."""
    lines = results_table(run.results(None)).splitlines()
    return [line for line in lines if line.startswith(("floor  ", "no floor  "))]


def test_the_floor_of_each_model_is_measured_once_for_its_fastest_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Guessing()
    with begun(tmp_path / "run", models=["tiny-gpt-neox", "tiny-vit"], floor=True) as run:
        assert searched(run, fake, monkeypatch) is None
        results, path = run.results(None), bundle_of(run, tmp_path / "one.tar")
        assert [trial.id for trial in fake.floors] == [winner.trial for winner in results.winners]
        with_floor = [trial for trial in results.trials if trial.floor]
        assert [trial.id for trial in with_floor] == [trial.id for trial in fake.floors]
        assert all(0.7 < (trial.share_of_floor or 0) < 0.8 for trial in with_floor)
        assert capsys.readouterr().err.count("% of a step") == 2
    assert verify_bundle(path, recompute).contents.results.trials == results.trials
    with begun(tmp_path / "run", models=["tiny-gpt-neox", "tiny-vit"], floor=True) as run:
        assert searched(run, fake, monkeypatch) is None
        assert len(fake.floors) == 2, "a run that is continued has them already"


def test_without_a_word_in_the_manifest_floors_are_for_gpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.telemetry, "TelemetrySampler", lambda *given: METER)
    on_gpu = replace(NODE, gpus=(Gpu(0, "NVIDIA H200", "GPU-0", 140 * GIB, "9.0"),))
    wanted = {(node.device, floor): 0 for node in (NODE, on_gpu) for floor in (None, True, False)}
    for number, (device, floor) in enumerate(wanted):
        fake, changes = Guessing(), {} if floor is None else {"floor": floor}
        with begun(tmp_path / f"{number}", on_gpu if device == "cuda" else NODE, **changes) as run:
            searched(run, fake, monkeypatch)
        wanted[device, floor] = len(fake.floors)
    assert wanted == {
        ("cpu", None): 0, ("cpu", True): 1, ("cpu", False): 0,
        ("cuda", None): 1, ("cuda", True): 1, ("cuda", False): 0,
    }  # fmt: skip


class Floorless(Guessing):
    """A supervisor whose floors end in another way."""

    def __init__(self, end: Floor | Failure | EnvironmentCannot) -> None:
        super().__init__()
        self.end = end

    def floor(self, trial: Trial, *_: Any) -> Floor | Failure:
        self.floors.append(trial)
        if isinstance(self.end, EnvironmentCannot):
            raise self.end
        return self.end


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (Crashed("RuntimeError: no kernel"), "crashed: RuntimeError: no kernel"),
        (OutOfMemory("gpu", "tried to\nallocate"), "out of gpu memory: tried to.+allocate"),
        (EnvironmentCannot("no room", where="/scratch", advice="make room"), "/scratch: no room$"),
        (Floor(3, 1e6, 0.0, 0.0, 0.0), "its floor takes [0-9,]+% of the time of its step"),
    ],
)
def test_a_floor_that_fails_is_a_note_in_a_complete_run(
    end: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with begun(tmp_path / "run", floor=True) as run:
        assert searched(run, Floorless(end), monkeypatch) is None
        (line,) = shown(run)
        assert re.match(f"no floor  tiny-gpt-neox: {why}", line)
        assert re.search(f"no floor: {why}", capsys.readouterr().err)
        path = bundle_of(run, tmp_path / "one.tar")
    assert verify_bundle(path, recompute).contents.results.run.complete


def test_a_budget_that_is_nearly_spent_leaves_no_time_for_a_floor_and_resuming_measures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Guessing()
    with begun(tmp_path, floor=True) as run:
        assert searched(run, fake, monkeypatch, budget=50.0) is None
        (line,) = shown(run)
        left = "[0-9]+ s of the budget are left, a floor may take 60 s"
        assert re.search(f"no floor  tiny-gpt-neox: {left}", line)
        assert fake.floors == []
    with begun(tmp_path, floor=True) as run:
        assert searched(run, fake, monkeypatch) is None
        assert len(fake.floors) == 1
        (line,) = shown(run)
        assert line.startswith("floor  tiny-gpt-neox: ")


def test_a_run_on_several_nodes_says_that_it_has_no_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Guessing()
    fake.nodes = Nodes(2, 0, "127.0.0.1:0", "abc")
    with begun(tmp_path, floor=True) as run:
        assert searched(run, fake, monkeypatch) is None
        assert "a floor is measured on one node" in shown(run)[0]
    assert fake.floors == []


# Gradient checks


class Checking(Guessing):
    """A supervisor whose gradient checks end as `ends` says, one after the other, and then agree."""

    def __init__(self, *ends: GradientCheck | Failure | EnvironmentCannot) -> None:
        super().__init__()
        self.ends = list(ends)

    def gradient_check(self, trial: Trial, *_: Any) -> GradientCheck | Failure:
        self.checked.append(trial)
        end = self.ends.pop(0) if self.ends else AGREES
        if isinstance(end, EnvironmentCannot):
            raise end
        return end


def about_gradients(run: Run) -> list[str]:
    """Return the lines about gradients under the table of a run's results."""
    lines = results_table(run.results(None)).splitlines()
    return [line for line in lines if re.match("(WRONG )?(GRADIENTS|gradients)", line)]


def test_the_fastest_setting_of_each_model_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, changes = Checking(), {"models": ["tiny-gpt-neox", "tiny-vit"], "gradient_check": True}
    with begun(tmp_path / "run", **changes) as run:
        assert searched(run, fake, monkeypatch) is None
        results, path = run.results(None), bundle_of(run, tmp_path / "one.tar")
        assert [trial.id for trial in fake.checked] == [winner.trial for winner in results.winners]
        checked = [trial.id for trial in results.trials if trial.gradient_check == AGREES]
        assert checked == [trial.id for trial in fake.checked]
        assert capsys.readouterr().err.count("gradients agree: 3% in embed_in.weight, 0.4% in all") == 2
        assert len(about_gradients(run)) == 2
    assert verify_bundle(path, recompute).contents.results.trials == results.trials
    with begun(tmp_path / "run", **changes) as run:
        assert searched(run, fake, monkeypatch) is None
        assert len(fake.checked) == 2, "a run that is continued has them already"


def test_a_setting_with_wrong_gradients_is_not_ranked_and_the_next_fastest_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Checking(DIFFERS)
    with begun(tmp_path / "run", gradient_check=True, floor=True) as run:
        assert searched(run, fake, monkeypatch) is None
        results, path = run.results(None), bundle_of(run, tmp_path / "one.tar")
        wrong, right = fake.checked
        assert right.setting != wrong.setting, "no micro-batch of the wrong setting is ranked"
        assert [winner.trial for winner in results.winners] == [right.id]
        assert [trial.id for trial in fake.floors] == [right.id]
        assert unproven(run.plan, run.plausible_outcomes, ()) == right
        assert "WRONG GRADIENTS, never ranked: 20,000,000% in layers.1" in capsys.readouterr().err
        text = results_table(results)
        label = next(trial.label for trial in results.trials if trial.id == wrong.id)
        rows = [line for line in text.splitlines() if line.strip().startswith(f"{label}  ")]
        assert rows and all(row.endswith("  WRONG GRADIENTS") for row in rows)
        assert "they differ from the unmodified model's by 20,000,000% in layers.1" in text
    assert verify_bundle(path, recompute).contents.results.winners == results.winners
    with begun(tmp_path / "run", gradient_check=True) as run:  # --resume reads the journal in this way
        assert run.results(None).winners == results.winners
        assert searched(run, again := Checking(DIFFERS), monkeypatch) is None
    assert again.checked == again.asked == []


def test_not_more_than_three_settings_of_a_model_are_found_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Checking(*[DIFFERS] * 9)
    methods = ["naive", ["checkpointing"], ["kernels"], ["kernels", "checkpointing"], ["fused-optimizer"]]
    with begun(tmp_path, gradient_check=True, methods=methods) as run:
        assert searched(run, fake, monkeypatch) is None
        assert len({trial.setting for trial in fake.checked}) == len(fake.checked) == MOST_WRONG
        winner = next(t for t in run.summaries() if t.id == run.results(None).winners[0].trial)
        assert winner.setting not in {trial.setting for trial in fake.checked}
        assert winner.no_gradient_check == "3 faster settings have wrong gradients, and no more are checked"


def test_a_model_whose_settings_are_all_wrong_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path / "run", gradient_check=True, methods=["naive", ["kernels"]]) as run:
        assert searched(run, Checking(DIFFERS, DIFFERS), monkeypatch) is None
        assert run.results(None).winners[0].trial is None
        path = bundle_of(run, tmp_path / "one.tar")
    assert without_figures(verify_bundle(path, recompute).contents.results) == {
        "tiny-gpt-neox": "wrong gradients"
    }


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (Crashed("RuntimeError: no kernel"), "crashed: RuntimeError: no kernel"),
        (OutOfMemory("gpu", "tried to\nallocate"), "out of gpu memory: tried to.+allocate"),
        (EnvironmentCannot("no room", where="/scratch", advice="make room"), "/scratch: no room$"),
        (GradientCheck((), 28, 0.9, "a", 0.1), "its gradients differ by more than the worst of them"),
    ],
)
def test_a_gradient_check_that_fails_is_a_note_in_a_complete_run(
    end: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with begun(tmp_path / "run", gradient_check=True) as run:
        assert searched(run, fake := Checking(end), monkeypatch) is None
        assert len(fake.checked) == 1
        (line,) = about_gradients(run)
        assert re.match(f"gradients not checked  tiny-gpt-neox: .+: {why}", line)
        assert re.search(f"gradients not checked: {why}", capsys.readouterr().err)
        path = bundle_of(run, tmp_path / "one.tar")
    assert verify_bundle(path, recompute).contents.results.run.complete
    with begun(tmp_path / "run", gradient_check=True) as run:
        assert searched(run, Checking(), monkeypatch) is None
        assert about_gradients(run)[0].startswith("gradients  "), "a run that is continued tries again"


def test_a_check_needs_time_one_node_and_a_setting_that_divides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[dict[str, Any], float | None, Nodes | None, str]] = [
        ({}, 50.0, None, "s of the budget are left, a check may take 60 s"),
        ({}, None, Nodes(2, 0, "127.0.0.1:0", "abc"), "gradients are checked on one node"),
        ({"methods": [["zero-2", "offload"]]}, None, None, "compared on one device, and zero-2 divides them"),
    ]
    monkeypatch.setattr("bench.training.methods.refusal", lambda *_: None)
    for number, (changes, budget, nodes, why) in enumerate(cases):
        fake = Checking()
        fake.nodes = nodes
        with begun(tmp_path / f"{number}", gradient_check=True, **changes) as run:
            assert searched(run, fake, monkeypatch, budget=budget) is None
            (line,) = about_gradients(run)
        assert line.startswith("gradients not checked")
        assert why in line
        assert fake.checked == []


def test_a_trial_waits_for_the_memory_of_the_one_before() -> None:
    readings = [{0: 60 * GIB, 1: GIB}, {0: 3 * GIB, 1: GIB}, {0: GIB, 1: GIB}]
    said: list[str] = []
    settle(lambda: readings.pop(0), {0: GIB, 1: GIB}, said.append)
    assert readings == [] and said == []


def test_memory_that_does_not_come_back_is_named() -> None:
    said: list[str] = []
    settle(lambda: {3: GIB, 1: 15 * GIB}, {3: GIB, 1: GIB}, said.append, seconds=0)
    assert len(said) == 1
    assert "14.0 GiB on GPU 1" in said[0]


def test_memory_on_gpus_that_do_not_train_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = tuple(Gpu(index, "NVIDIA H200", f"GPU-{index}", 140 * GIB, "9.0") for index in (3, 1))
    node = replace(NODE, gpus=gpus)
    noted: list[int] = []
    meter = SimpleNamespace(
        **vars(METER) | {"used_bytes": lambda: [GIB, 90 * GIB], "note_held": noted.append}
    )
    looked: list[Mapping[int, int]] = []
    monkeypatch.setattr(loop.telemetry, "TelemetrySampler", lambda *given: meter)
    monkeypatch.setattr(loop, "settle", lambda used, before, say: looked.extend((used(), before)))
    with begun(tmp_path / "1", node) as run:
        searched(run, Guessing(), monkeypatch)
    assert looked
    assert all(seen == {3: GIB} for seen in looked)
    assert noted == [1] * (len(looked) // 2), "what others hold is noted before each job"
    assert "in use by others" not in capsys.readouterr().err


def test_memory_held_by_others_from_the_start_is_reported() -> None:
    said: list[str] = []
    tell_of_others({2: 600 << 20, 5: 30 << 30, 7: 0}, said.append)
    assert said == [
        "other processes use GPU memory: 30.0 GiB on GPU 5; "
        "which micro-batches fit, and how fast they are, depends on them"
    ]
    tell_of_others({0: 600 << 20}, said.append)
    tell_of_others({}, said.append)
    assert len(said) == 1


def test_a_machine_without_gpus_has_nothing_to_wait_for() -> None:
    said: list[str] = []
    settle(dict, {}, said.append)
    assert said == []


@pytest.mark.parametrize("wanted", [None, {"steps": 1, "minutes": 0.1}])
def test_a_run_that_was_interrupted_after_its_trials_says_what_it_still_lacked(
    wanted: dict[str, float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path, **({"prove": wanted} if wanted else {})) as run:
        assert "undecided" in loop.what_is_open(run)

        class Interrupting(Guessing):
            def proof(self, *_: Any) -> Any:
                raise KeyboardInterrupt

        stopped = searched(run, Interrupting(), monkeypatch)
        assert stopped == ("interrupted, before tiny-gpt-neox was proven" if wanted else None)
        assert wanted or loop.what_is_open(run) == "all models decided"
