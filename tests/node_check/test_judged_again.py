"""Each rule by which the results of a node check are built, and by which a reader judges them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.base.errors import VerificationFailed
from bench.base.stamps import utc
from bench.base.strict_json import from_json, to_json
from bench.bundle.statement import Predicate, identity_of
from bench.bundle.verdict import Note
from bench.node_check import check_results
from bench.node_check.check_manifest import load
from bench.node_check.check_results import (
    MAX_READINGS_BYTES,
    PACKAGES,
    CheckResults,
    _covered_seconds,
    _judged_again,
    _of_own_profile,
    _on_trust,
    _read_evidence,
    _require_equal,
    _require_possible,
    judge,
    readings_bytes,
    recompute_check,
    results_of,
    rules_digest,
    shown_findings,
)
from bench.node_check.checks import Check
from bench.node_check.judging.evidence import Evidence, Figure, Reading
from bench.node_check.judging.finding import Finding, Question
from bench.node_check.judging.standards import Baseline, Expectations, Past, Profile, Standards, profile_of
from bench.records.run_results import RunFacts
from bench.records.trial import Gpu, NodeFacts
from tests.node_check import made
from tests.node_check.checks.node import evidence

OTHER_RULES = "sha256:" + "0" * 64
H200, L4 = "NVIDIA H200", "NVIDIA L4"


def gpu(index: int, name: str = H200, memory_bytes: int = 1 << 36) -> Gpu:
    return Gpu(index, name, f"GPU-{index}", memory_bytes, "9.0")


def node(*gpus: Gpu) -> NodeFacts:
    return NodeFacts("a CPU", 8, 2**40, "Debian", "6.1", "3.12.1", gpus)


def answer(name: str, verdict: Any = "pass", **more: Any) -> Finding:
    return Question(name).judged(verdict, "found", expected="expected", source="a rule", **more)


def empty(*readings: Reading, gpus: tuple[Gpu, ...] = (), level: Any = "quick") -> Evidence:
    return Evidence(level, "cuda" if gpus else "cpu", gpus, {reading.name: reading for reading in readings})


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """Replace the checks of a node by those that a test puts into this dictionary."""
    known: dict[str, Check] = {}
    monkeypatch.setattr(check_results, "known_checks", lambda: known)
    return known


def check(name: str, *findings: Finding, **more: Any) -> Check:
    return Check(name, "?", lambda _, __: iter(findings), **more)


def test_each_check_that_the_depth_asks_for_is_answered_in_order(checks: dict[str, Check]) -> None:
    checks |= {
        "b": check("b", answer("b", "warn"), answer("b")),
        "nodes": check("nodes", answer("nodes"), between_nodes=True, workers="nodes"),
        "a": check("a", answer("a", "fail", counts=False)),
    }
    standards = Standards(None)
    assert [one.check for one in judge(empty(), standards, ())] == ["b", "b", "a"]
    assert [one.check for one in judge(empty(level="nodes"), standards, ())] == ["nodes"]
    assert [one.counts for one in judge(empty(), standards, ())] == [True, True, False]
    assert [one.counts for one in judge(empty(), standards, ("a",))] == [True, True, True]


def test_a_check_without_an_answer_tells_why(checks: dict[str, Check]) -> None:
    checks |= {
        "old": check("old", answer("old"), has_older_bundles=True),
        "new": check("new", answer("new")),
        "silent": check("silent"),
    }
    standards = Standards(None)

    def answers(found: Evidence) -> list[tuple[str, str, str, bool]]:
        return [(one.check, one.verdict, one.found, one.counts) for one in judge(found, standards, ())]

    nothing = ("silent", "not-run", "no GPU answers", True)
    passed = ("new", "pass", "found", True)
    assert answers(empty()) == [
        ("old", "not-run", "the bundle is older than this check", False), passed, nothing,
    ]  # fmt: skip
    assert answers(empty(gpus=(gpu(0),)))[2] == ("silent", "not-run", "there was nothing to judge", True)
    assert answers(empty(Reading("old"))) == [("old", "pass", "found", True), passed, nothing]
    for counts in (True, False):
        unread = Reading("new", {}, "needs root", counts)
        assert answers(empty(unread, Reading("old")))[1] == ("new", "not-run", "needs root", counts)


def test_results_hold_what_the_node_was_judged_by(checks: dict[str, Check]) -> None:
    checks |= {"a": check("a", answer("a", "fail")), "b": check("b", answer("b", counts=False))}
    standards = Standards(
        profile_of(H200),
        Expectations(gpus=1),
        {"GPU-0": Past(("run",), {"memory": (1.0,)})},
        Baseline("run", 1.0, {"kernel": {"release": "6.1"}}),
    )
    header: dict[str, Any] = {
        "bench_version": "1.2", "manifest_digest": "sha256:1", "run": RunFacts("run", 0.0, 9.0, True, None),
        "node": node(gpu(0)), "simulated": True,
    }  # fmt: skip
    done = results_of(empty(gpus=(gpu(0),)), standards, ["b"], **header)
    assert done == CheckResults(
        **header, level="quick", device="cuda", profile=standards.profile, expect=standards.expect,
        require=("b",), verdict="fail", findings=(answer("a", "fail"), answer("b", counts=True)),
        history=standards.history, rules=rules_digest(), baseline=standards.baseline,
        schema="bench/check-results/v1",
    )  # fmt: skip
    assert done.standards == standards
    assert json.loads(done.to_bytes()) == json.loads(json.dumps(to_json(done)))
    assert b'\n "level": "quick"' in done.to_bytes(), "for people"


def test_results_of_the_first_bundles_name_no_rules() -> None:
    done = results_of(
        empty(), Standards(None), (), bench_version="1", manifest_digest="", node=node(), simulated=False,
        run=RunFacts("run", 0.0, 9.0, True, None),
    )  # fmt: skip
    document: Any = json.loads(done.to_bytes())
    for later in ("rules", "history", "baseline"):
        document.pop(later, None)
    found = from_json(CheckResults, document)
    assert (found.rules, found.history, found.baseline) == ("", {}, None)


def test_the_digest_of_the_rules_covers_the_sources_that_judge_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(bench.__file__).parents[1] == check_results.ROOT
    assert PACKAGES == ("bench.node_check", "bench.node_check.judging", "bench.node_check.checks")
    monkeypatch.setattr(check_results, "ROOT", tmp_path)
    hashed = b""
    for package in PACKAGES:
        folder = tmp_path / package.replace(".", "/")
        folder.mkdir(parents=True)
        for name in ("b.py", "a.py", "notes.txt"):
            (folder / name).write_text(f"{package} {name}")
        for name in ("a.py", "b.py"):
            hashed += f"{package}/{name}\0{package} {name}\0".encode()
    assert rules_digest.__wrapped__() == "sha256:" + sha256(hashed).hexdigest()


def test_readings_are_lines_in_the_order_in_which_they_were_made() -> None:
    readings = {"b": Reading("b", {"x": 1}), "a": Reading("a", {}, "no GPU", False, 1.0, 2.0)}
    lines = readings_bytes(readings).split(b"\n")
    assert [from_json(Reading, json.loads(line)) for line in lines[:-1]] == [*readings.values()]
    assert lines[-1] == b""


class Files:
    """The files of a bundle, whose signatures were checked before."""

    def __init__(self, done: CheckResults, found: Evidence, **changes: bytes) -> None:
        contents = made.files(done, found)
        self.data = {name: bytes(data) for name, data in contents.items() if isinstance(data, bytes)}
        self.data |= {name.replace("_", "."): data for name, data in changes.items()}
        self.sha256 = {name: sha256(data).hexdigest() for name, data in self.data.items()}
        self.run = Predicate(
            run_id=done.run.id, manifest_sha256=self.sha256["manifest.json"], node=identity_of(done.node),
            started_at=utc(done.run.started_at), ended_at=utc(done.run.ended_at), complete=done.run.complete,
        )  # fmt: skip
        self.now = done.run.ended_at

    def read(self, name: str) -> bytes:
        return self.data[name]

    def lines(self, name: str) -> Iterator[bytes]:
        return iter(self.data[name].removesuffix(b"\n").split(b"\n"))


Checked = tuple[CheckResults, Evidence]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """Return the results and the readings of a good node of two H200."""
    found = evidence(tmp_path_factory.mktemp("node"), count=2)
    return made.results(found), found


def again(done: CheckResults, files: Any) -> Any:
    return recompute_check(json.loads(done.to_bytes()), files)


def refusal(done: CheckResults, files: Any) -> str:
    with pytest.raises(VerificationFailed) as refused:
        again(done, files)
    return str(refused.value)


def test_a_good_node_is_judged_again_with_what_was_counted(checked: Checked) -> None:
    done, found = checked
    contents = again(done, Files(done, found))
    assert contents.results == done
    assert (contents.claimed, contents.shipped_profile, contents.notes) == ("pass", True, ())
    assert contents.evidence.course == found.course
    figures = [one for reading in found.readings.values() for one in (reading.data or {}).get("figures", ())]
    assert contents.samples == sum(len(one["samples"]) for one in figures) > 0
    assert contents.facts() == {
        "samples": contents.samples, "measured_seconds": contents.measured_seconds, "on_trust": (),
        "check_level": "quick", "check_verdict": "pass", "claimed_verdict": "pass", "shipped_profile": True,
    }  # fmt: skip


def test_results_of_another_manifest_software_run_or_machine_are_refused(checked: Checked) -> None:
    done, found = checked
    files = Files(done, found)
    other = replace(done, manifest_digest="sha256:" + "0" * 64)
    assert refusal(other, files) == "the results belong to another manifest"
    required = replace(done, require=("matmul",))
    assert refusal(required, files) == "the results require other checks than their manifest"
    later = replace(done, run=replace(done.run, id="another"))
    assert refusal(later, files) == "the results are of another run than the statement"
    two_lines = replace(done, node=replace(done.node, cpu="a\nb"))
    assert refusal(two_lines, files).endswith("/node/cpu is a text of several lines")
    image = json.dumps(json.loads(load(None).data) | {"image": "sha256:1"}).encode()
    asked = replace(done, manifest_digest="sha256:" + sha256(image).hexdigest())
    message = refusal(asked, Files(asked, found, manifest_json=image))
    assert message == "ran in no known image, the manifest asks for sha256:1"


def test_results_that_are_malformed_or_make_no_sense_are_refused(checked: Checked) -> None:
    done, found = checked
    document: Any = json.loads(done.to_bytes())
    for changes, why in (
        ({"level": "deep"}, "results.json: is malformed: "),
        ({"device": 7}, "results.json: is malformed: "),
    ):
        with pytest.raises(VerificationFailed, match=f"^{why}"):
            recompute_check(document | changes, Files(done, found))  # type: ignore[arg-type]
    senseless = replace(found, readings=found.readings | {"disk": Reading("disk", {"written_bytes": "much"})})
    assert refusal(done, Files(done, senseless)).startswith("the results or the readings make no sense: ")


def with_readings(found: Evidence, *readings: Reading) -> Evidence:
    return replace(found, readings=found.readings | {reading.name: reading for reading in readings})


def test_readings_of_another_version_are_read_and_under_the_same_rules_refused(checked: Checked) -> None:
    done, found = checked
    older = replace(done, rules=OTHER_RULES)
    more = with_readings(found, Reading("z" * 70), Reading("charm"))
    assert refusal(done, Files(done, more)) == "samples.jsonl: has a reading of no check: charm"
    long = with_readings(found, Reading("z" * 70))
    assert refusal(done, Files(done, long)).endswith(f"no check: {'z' * 60}")
    assert "charm" in _read_evidence(older, Files(older, more)).readings  # type: ignore[arg-type]
    fewer = replace(found, readings={n: r for n, r in found.readings.items() if n not in ("numa", "matmul")})
    assert refusal(done, Files(done, fewer)) == "samples.jsonl: has no reading of matmul, nor why"
    assert "matmul" not in _read_evidence(older, Files(older, fewer)).readings  # type: ignore[arg-type]
    assert "pairs" not in found.readings, "the depth does not ask for it"
    names = {"ports", "gpudirect", "pairs", "exchange"}
    between = replace(found, readings={name: Reading(name, {}, "no peer") for name in names})
    nodes = replace(done, level="nodes")
    assert _read_evidence(nodes, Files(nodes, between)).readings.keys() == names  # type: ignore[arg-type]
    assert "power" not in found.readings, "it is judged by the inventories"


def test_each_reading_is_there_once_and_all_have_at_most_16_mib(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, found = checked
    files = Files(done, found)
    lines = files.data["samples.jsonl"].splitlines()
    files.data["samples.jsonl"] = b"\n".join([*lines, lines[-1]]) + b"\n"
    assert refusal(done, files) == "samples.jsonl: contains a reading twice"
    assert MAX_READINGS_BYTES == 16 * 2**20
    size = sum(map(len, lines))
    monkeypatch.setattr(check_results, "MAX_READINGS_BYTES", size)
    again(done, Files(done, found))
    monkeypatch.setattr(check_results, "MAX_READINGS_BYTES", size - 1)
    assert refusal(done, Files(done, found)) == f"samples.jsonl: has more than {size - 1:,} bytes"


def figure(name: str, rate: float, of: int | None, unit: Any = "B/s", kind: str = "") -> Figure:
    return Figure(name, of, unit, rate, (1.0,), kind)


def possible(done: CheckResults, made_on: NodeFacts, judged: Figure) -> str | None:
    """Return why a figure is refused; None if it is possible."""
    try:
        _require_possible(replace(done, node=made_on), judged)
    except VerificationFailed as refused:
        return str(refused)
    return None


MIXED = node(gpu(0), gpu(1, L4))
UNKNOWN = node(gpu(0, L4), gpu(1, "NVIDIA X900"))


@pytest.mark.parametrize(
    ("made_on", "name", "of", "unit", "most"),
    [
        (MIXED, "memory", 0, "B/s", 1.5 * 4.8e12),
        (MIXED, "memory", 1, "B/s", 1.5 * 300e9),
        (MIXED, "matmul-bf16", 0, "FLOP/s", 1.5 * 989.4e12),
        (MIXED, "all-reduce", None, "B/s", 1.5 * 900e9),  # the fastest of its GPUs
        (node(gpu(0, L4), gpu(1)), "all-reduce", None, "B/s", 1.5 * 900e9),
        (MIXED, "host-memory", None, "B/s", 4e12),
        (MIXED, "disk write", None, "B/s", 4e12),
        (MIXED, "numa 0 triad", None, "B/s", 4e12),
        (MIXED, "disk write", 1, "B/s", 1.5 * 128e9),  # no figure of the host
        (node(), "memory", 0, "B/s", 4e12),
        (node(), "matmul-bf16", 0, "FLOP/s", 8 * 5e12),
        (node(), "matmul-fp32", 0, "FLOP/s", 8 * 1e12),
    ],
)
def test_no_figure_is_faster_than_its_gpu_its_links_or_its_host(
    checked: Checked, made_on: NodeFacts, name: str, of: int | None, unit: Any, most: float
) -> None:
    assert possible(checked[0], made_on, figure(name, 0.999 * most, of, unit)) is None
    why = possible(checked[0], made_on, figure(name, 1.001 * most, of, unit))
    assert why is not None and why.startswith(f"{name}{'' if of is None else f' of GPU {of}'} is ")


def test_of_a_gpu_that_nobody_knows_more_is_possible_than_of_any_other(checked: Checked) -> None:
    slow = possible(checked[0], UNKNOWN, figure("memory", 1e12, 0))
    assert slow is not None and "the vendor's peak of an NVIDIA L4" in slow
    assert possible(checked[0], UNKNOWN, figure("memory", 1e12, 1)) is None
    assert possible(checked[0], node(gpu(0), gpu(1, "NVIDIA X900")), figure("all-reduce", 2e12, None)) is None
    all_of_them = possible(checked[0], UNKNOWN, figure("all-reduce", 1e15, None))
    assert all_of_them is not None and "that of the fastest GPU that bench knows" in all_of_them


@pytest.mark.parametrize(
    ("name", "of", "unit"), [("memory", 2, "B/s"), ("matmul-bf16", None, "FLOP/s"), ("host-memory", 2, "B/s")]
)
def test_a_figure_is_of_a_gpu_of_the_node_or_of_the_node_as_a_whole(
    checked: Checked, name: str, of: int | None, unit: Any
) -> None:
    why = f"{name} is of a GPU that the node does not have"
    assert possible(checked[0], MIXED, figure(name, 1e9, of, unit)) == why


def test_a_figure_is_held_to_the_peaks_of_its_name_and_of_its_kind(checked: Checked) -> None:
    for name, kind in (("matmul-bf16", "matmul-fp32"), ("matmul-fp32", "matmul-bf16")):
        why = possible(checked[0], MIXED, figure(name, 500e12, 0, "FLOP/s", kind))
        assert why is not None and why.startswith(f"{name} of GPU 0 is 500 TFLOP/s")
    assert possible(checked[0], MIXED, figure("matmul-bf16", 500e12, 0, "FLOP/s", "matmul-fp16")) is None


def test_figures_of_a_reading_are_held_to_the_peaks_of_the_node(checked: Checked) -> None:
    done, found = checked
    fast = to_json(figure("memory", 1e15, 0))
    files = Files(done, with_readings(found, Reading("memory", {"figures": [fast]})))
    assert refusal(done, files).startswith(
        "memory of GPU 0 is 1,000,000 GB/s; the vendor's peak of an NVIDIA"
    )


def judged(done: CheckResults, found: Evidence) -> Any:
    return _judged_again(load(None), done, found)


def test_only_under_the_same_rules_and_profile_must_the_findings_be_the_same(checked: Checked) -> None:
    done, found = checked
    assert done.profile is not None
    wrong = replace(done, verdict="fail")
    with pytest.raises(VerificationFailed, match=r"^the overall verdict is fail; recomputed: pass$"):
        judged(wrong, found)
    assert judged(replace(wrong, rules=OTHER_RULES), found).claimed == "fail"
    mine = replace(done.profile, name="mine")
    contents = judged(replace(wrong, profile=mine), found)
    assert (contents.claimed, contents.results.verdict, contents.shipped_profile) == ("fail", "pass", False)
    assert contents.results.profile == done.profile
    assert contents.results.findings == (*done.findings, *_of_own_profile(mine, done.profile))


def test_a_gpu_that_nobody_knows_is_on_trust_if_it_answers(checked: Checked) -> None:
    done, found = checked
    older = replace(done, rules=OTHER_RULES)
    for memory_bytes, notes in (
        (1 << 36, ['no vendor\'s peak is known of "X900": its speed is taken on trust']),
        (0, []),
    ):
        strange = replace(found, gpus=(gpu(0, "X900", memory_bytes),))
        contents = judged(replace(older, node=node(*strange.gpus)), strange)
        assert [note.text for note in contents.notes] == notes
        assert [one.found for one in contents.results.findings if one.check == "unknown GPU"] == notes


def test_a_finding_of_several_lines_is_refused(checks: dict[str, Check], checked: Checked) -> None:
    checks |= {"a": check("a", replace(answer("a"), found="two\nlines"))}
    with pytest.raises(VerificationFailed, match=r"^samples\.jsonl: /0/found is a text of several lines$"):
        judged(replace(checked[0], rules=OTHER_RULES), checked[1])


def test_only_readings_that_were_made_count_as_measured(checks: dict[str, Check], checked: Checked) -> None:
    checks |= {"a": check("a", answer("a"))}
    figures = [to_json(replace(figure("memory", 1.0, 0), samples=(1.0, 2.0))), to_json(figure("b", 1.0, 0))]
    found = empty(
        Reading("a", {"figures": figures}, started_at=1.0, ended_at=3.0),
        Reading("b", {"facts": 7}, started_at=2.0, ended_at=4.0),
        Reading("c", {"figures": figures}, "no GPU answers", started_at=5.0, ended_at=9.0),
    )
    contents = judged(replace(checked[0], rules=OTHER_RULES, profile=None), found)
    assert (contents.samples, contents.measured_seconds) == (3, 3.0)


def test_what_a_reader_adds_warns_and_does_not_count() -> None:
    shipped = Profile("H200 SXM", (), "SXM", (), {})
    common: dict[str, Any] = {
        "subject": "the node", "verdict": "warn", "basis": "rule", "source": "bench", "counts": False,
    }  # fmt: skip
    (found,) = _of_own_profile(replace(shipped, name="mine"), shipped)
    assert found == Finding(
        check="profile", found="judged by a profile of its own, mine: judged again by H200 SXM",
        expected="the profile that this version of bench ships",
        advice="check the node again with this version of bench", **common,
    )  # fmt: skip
    assert _on_trust(Note(None, "nobody knows it")) == Finding(
        check="unknown GPU", found="nobody knows it",
        expected="a GPU with a vendor's peak in data/gpus.json",
        advice="a newer version of bench may know it", **common,
    )  # fmt: skip


def test_a_summary_tells_what_did_not_pass_and_counts_or_was_added_by_the_reader() -> None:
    every = {
        (name, verdict, counts): answer(name, verdict, counts=counts)
        for name in ("power", "profile", "unknown GPU")
        for verdict in ("pass", "warn", "fail", "not-run")
        for counts in (True, False)
    }
    assert shown_findings(every.values()) == tuple(
        finding
        for (name, verdict, counts), finding in every.items()
        if verdict != "pass" and (counts or name != "power")
    )


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict", "why"),
    [
        ([("a", "pass")], [("a", "pass")], "pass", None),
        (
            [("a", "pass"), ("b", "pass")], [("a", "pass"), ("b", "fail")], "pass",
            "the verdict does not follow from the readings: b: the node pass; recomputed: fail",
        ),
        (
            [("a", "pass")], [("a", "pass"), ("b", "fail")], "pass",
            "the results do not hold every verdict that follows from the readings",
        ),
        (
            [("a", "pass"), ("b", "fail")], [("a", "pass")], "pass",
            "the results do not hold every verdict that follows from the readings",
        ),
        ([("a", "pass")], [("a", "pass")], "warn", "the overall verdict is warn; recomputed: pass"),
    ],
)  # fmt: skip
def test_findings_and_verdict_must_follow_from_the_readings(
    checked: Checked,
    theirs: list[tuple[str, str]],
    ours: list[tuple[str, str]],
    verdict: Any,
    why: str | None,
) -> None:
    claimed = replace(checked[0], findings=tuple(answer(*one) for one in theirs), verdict=verdict)
    found = tuple(answer(*one) for one in ours)
    if why is None:
        _require_equal(claimed, found)
        return
    with pytest.raises(VerificationFailed) as refused:
        _require_equal(claimed, found)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(1.0, 3.0), (5.0, 6.0)], 3.0),
        ([(5.0, 6.0), (1.0, 3.0)], 3.0),
        ([(1.0, 3.0), (2.0, 4.0)], 3.0),
        ([(1.0, 9.0), (2.0, 4.0), (8.0, 10.0)], 9.0),  # the second ends before the first
        ([(3.0, 1.0)], 0.0),
    ],
)
def test_time_that_several_readings_share_counts_once(
    spans: list[tuple[float, float]], seconds: float
) -> None:
    assert _covered_seconds(spans) == seconds
