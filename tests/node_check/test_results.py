"""A bundle is refused if its verdict does not follow from its readings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.base.errors import VerificationFailed
from bench.base.strict_json import canonical_json, to_json
from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.node_check.check_results import UNKNOWN_GPU, CheckContents
from bench.node_check.fleet import compare_fleet, fleet_member
from bench.node_check.judging.evidence import Reading
from bench.node_check.judging.standards import profile_of
from bench.node_check.recompute_any import recompute
from bench.runner.check import history
from tests.node_check import made
from tests.node_check.checks.node import evidence
from tests.node_check.made import START, bundle, files, packed, results


def canonical(data: Any) -> Any:
    """Return data as they are read from a bundle."""
    return json.loads(canonical_json(to_json(data)))


def judged(path: Path) -> CheckContents:
    found = verify_bundle(path, recompute).contents
    assert isinstance(found, CheckContents)
    return found


def test_every_verification_judges_the_readings_again(tmp_path: Path) -> None:
    for name, scenario, verdict in (
        ("good", {}, "pass"),
        ("slow", {"rates": {"matmul": {"5": 0.8}}}, "fail"),
        ("doubtful", {"all": {"PersistenceMode": 0}}, "warn"),
    ):
        found = judged(bundle(tmp_path / f"{name}.tar", tmp_path, **scenario))
        assert found.results.verdict == verdict
        assert found.shipped_profile


def forged(folder: Path, **changes: Any) -> Path:
    """Write the bundle of a failing node with results that do not follow from its readings."""
    found = evidence(folder, rates={"matmul": {"5": 0.8}})
    done = results(found)
    other = replace(done, **{name: change(done) for name, change in changes.items()})
    return packed(folder / "forged.tar", other, files(other, found))


def test_a_verdict_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    better = forged(tmp_path, findings=lambda d: tuple(replace(f, verdict="pass") for f in d.findings))
    with pytest.raises(VerificationFailed, match="does not follow from the readings"):
        judged(better)


def test_a_bundle_without_a_finding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match=r"does not hold every verdict|does not follow|do not hold"):
        judged(forged(tmp_path, findings=lambda d: d.findings[:-1]))


def test_the_verdict_must_follow_from_the_findings(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="the overall verdict is pass; recomputed: fail"):
        judged(forged(tmp_path, verdict=lambda _: "pass"))


def test_under_other_rules_only_the_readers_verdict_counts(tmp_path: Path) -> None:
    """A verdict by other rules, or a false claim of other rules, is neither refused nor believed."""
    others = {"rules": lambda _: "sha256:" + "0" * 64, "verdict": lambda _: "pass"}
    for changes in (
        others,
        {**others, "rules": lambda _: ""},
        {**others, "findings": lambda d: tuple(replace(f, verdict="pass") for f in d.findings)},
        {**others, "findings": lambda _: ()},
    ):
        found = judged(forged(tmp_path, **changes))
        assert found.claimed == "pass"
        assert found.results.verdict == "fail"
        assert {f.gpu for f in found.results.findings if f.verdict == "fail"} == {5}


def slow_by_its_own_profile(folder: Path, times: float) -> Path:
    """Write the bundle of a node whose products are slower by a factor, and whose profile expects that."""
    found = evidence(folder, rates={"matmul": {"*": 1 / times}, "soak": {"*": 1 / times}})
    profile = results(found).profile
    assert profile is not None
    figures = {n: replace(f, value=f.value / times) for n, f in profile.figures.items()}
    lenient = replace(profile, name="mine", figures=figures)
    with mock.patch.object(made, "profile_of", return_value=lenient):
        done = results(found)
    assert done.verdict == "pass"
    return packed(folder / "lenient.tar", done, files(done, found))


def test_a_node_is_judged_by_the_readers_profile(tmp_path: Path) -> None:
    """A node that brings its own measure would pass with any figures."""
    found = judged(slow_by_its_own_profile(tmp_path, 10))
    assert (found.claimed, found.results.verdict, found.shipped_profile) == ("pass", "fail", False)
    assert {f.gpu for f in found.results.findings if f.verdict == "fail"} == set(range(8))


def test_a_profile_of_its_own_is_told_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = slow_by_its_own_profile(tmp_path, 1)
    found = judged(path)
    assert found.results.verdict == "pass"
    assert found.results.profile == profile_of("NVIDIA H200")
    honest = bundle(tmp_path / "honest.tar", tmp_path)
    assert main(["compare", str(path), str(honest)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "judged by a profile of its own, mine" in shown
    assert "2 PASS" in shown


def test_compare_fails_for_a_node_that_is_slow_by_the_readers_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(slow_by_its_own_profile(tmp_path, 10))]) == 1
    assert "1 FAIL" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "line",
    [
        {
            "name": "matmul",
            "data": {
                "figures": [{"name": "a", "gpu": 0, "unit": "B/s", "work": 1.0, "samples": [0.0], "kind": ""}]
            },
        },
        {"name": "matmul", "data": {"figures": "many"}},
        {"name": "matmul", "data": {"figures": 7}},
        {"name": "matmul", "data": {"figures": [[]]}},
        {"name": "matmul", "ended_at": 1e308, "started_at": -1e308},
        {"name": "soak", "data": {"gpus": 7}},
        {"name": "soak", "data": {"gpus": [{"gpu": 0}]}},
        {"name": "agreement", "data": {"gpus": 3}},
        {"name": "inventory-before", "data": {"gpus": [7]}},
        {"name": "disk", "data": {"free_bytes": "much"}},
    ],
)
def test_senseless_readings_are_refused_with_a_message(line: dict[str, Any], tmp_path: Path) -> None:
    found = evidence(tmp_path)
    done = results(found)
    contents = files(done, found)
    samples = contents["samples.jsonl"]
    assert isinstance(samples, bytes)
    kept = [text for text in samples.splitlines() if json.loads(text)["name"] != line["name"]]
    contents["samples.jsonl"] = b"\n".join([*kept, json.dumps(line).encode()]) + b"\n"
    with pytest.raises(VerificationFailed):
        judged(packed(tmp_path / "senseless.tar", done, contents))


def sped_up(folder: Path, check: str, times: float) -> Path:
    """Write the bundle of a node whose readings of one check are faster by a factor."""
    found = evidence(folder)

    def faster(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: [s / times for s in item] if key == "samples" else faster(item)
                for key, item in value.items()
            }
        return [faster(item) for item in value] if isinstance(value, list) else value

    data = faster(canonical(found.readings[check].data))
    for key in data.keys() & {"write_seconds", "read_seconds"}:
        data[key] /= times
    quick = replace(found, readings={**found.readings, check: replace(found.readings[check], data=data)})
    done = results(quick)
    return packed(folder / f"{check}.tar", done, files(done, quick))


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("matmul", "matmul-.* of GPU 0 is .* TFLOP/s; the vendor's peak of an NVIDIA H200 is"),
        ("soak", "soak of GPU 0 is .* TFLOP/s; the vendor's peak of an NVIDIA H200"),
        ("memory", "memory of GPU 0 is .* GB/s; the vendor's peak of an NVIDIA H200 is 4,800"),
        ("copies", "host-to-device of GPU 0 is .* GB/s; the vendor's peak of an NVIDIA H200"),
        ("peers", "peer 0-1 is .* GB/s; the vendor's peak of an NVIDIA H200"),
        ("all-reduce", "all-reduce 8 x .* is .* GB/s; the vendor's peak of an NVIDIA H200"),
        ("host-memory", "host-memory is .* GB/s; the most that a machine's own memory can do is 4,000"),
        ("disk", "disk write is .* GB/s; the most that a machine's own memory can do is 4,000"),
    ],
)
def test_figures_that_no_hardware_reaches_are_refused(check: str, told: str, tmp_path: Path) -> None:
    """Without an upper limit, a node that is broken or lent twice could sign any good figure."""
    with pytest.raises(VerificationFailed, match=told):
        judged(sped_up(tmp_path, check, 5000 if check in ("disk", "host-memory") else 50))
    assert judged(sped_up(tmp_path, check, 1.05)).notes == ()


@pytest.mark.parametrize(("name", "gpu"), [("matmul-bf16", None), ("matmul-bf16", 99), ("memory", 99)])
def test_a_figure_of_a_gpu_that_the_node_does_not_have_is_refused(
    name: str, gpu: int | None, tmp_path: Path
) -> None:
    """The host's own limit of products would allow more than a GPU's."""
    found = evidence(tmp_path)
    check = name.partition("-")[0]
    (figure, *_) = (f for f in canonical(found.readings[check].data)["figures"] if f["name"] == name)
    data = {"figures": [figure | {"gpu": gpu}]}
    other = replace(found, readings={**found.readings, check: replace(found.readings[check], data=data)})
    done = results(found)
    with pytest.raises(VerificationFailed, match="is of a GPU that the node does not have"):
        judged(packed(tmp_path / "b.tar", done, files(done, other)))


def test_figures_of_a_gpu_that_nobody_knows_are_on_trust(tmp_path: Path) -> None:
    (note,) = judged(bundle(tmp_path / "b.tar", tmp_path, all={"Name": "NVIDIA X900"})).notes
    assert str(note) == 'no vendor\'s peak is known of "NVIDIA X900": its speed is taken on trust'


def test_what_is_on_trust_is_told_in_a_comparison_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle(tmp_path / "b.tar", tmp_path, all={"Name": "NVIDIA X900"})
    found = judged(path)
    (told,) = (finding for finding in found.results.findings if finding.check == UNKNOWN_GPU)
    assert (told.verdict, told.counts) == ("warn", False)
    main(["compare", str(path)])
    assert 'no vendor\'s peak is known of "NVIDIA X900"' in " ".join(capsys.readouterr().out.split())


def test_a_node_with_something_on_trust_is_listed_before_its_equals(tmp_path: Path) -> None:
    """The worst is listed first."""
    honest = bundle(tmp_path / "a.tar", tmp_path)
    lenient = slow_by_its_own_profile(tmp_path, 1)
    members = [fleet_member(path, verify_bundle(path, recompute), judged(path)) for path in (honest, lenient)]
    assert [node.seen.name for node in compare_fleet(members).nodes] == ["lenient", "a"]


def test_a_check_that_left_out_a_reading_is_refused_under_the_same_rules(tmp_path: Path) -> None:
    """A missing reading of the work on all GPUs at once would hide that one card has several names."""
    found = evidence(tmp_path)
    left = {name: reading for name, reading in found.readings.items() if name != "own-card"}
    done = results(replace(found, readings=left))
    path = packed(tmp_path / "b.tar", done, files(done, replace(found, readings=left)))
    with pytest.raises(VerificationFailed, match="has no reading of own-card, nor why"):
        judged(path)


def test_readings_of_no_check_are_refused_under_the_same_rules(tmp_path: Path) -> None:
    """Millions of readings would cost gigabytes. A check of another version may be unknown here."""
    found = evidence(tmp_path)
    done, reading = results(found), Reading("charm", {"lucky": 7})
    contents = files(done, replace(found, readings={**found.readings, "charm": reading}))
    with pytest.raises(VerificationFailed, match=r"samples\.jsonl: has a reading of no check: charm"):
        judged(packed(tmp_path / "b.tar", done, contents))
    newer = replace(done, rules="sha256:" + "0" * 64)
    contents["results.json"] = newer.to_bytes()
    assert judged(packed(tmp_path / "c.tar", newer, contents)).results.verdict == "pass"


def test_telemetry_of_more_gpus_than_any_machine_has_is_refused(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    done = results(found)
    contents = files(done, found)
    contents["telemetry.jsonl"] = canonical_json({"at": START, "gpus": [{}] * 1025}) + b"\n"
    with pytest.raises(VerificationFailed, match="has more than 1024 GPUs"):
        judged(packed(tmp_path / "b.tar", done, contents))


def test_readings_of_many_megabytes_are_refused(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    done = results(found)
    contents = files(done, replace(found, readings={"disk": Reading("disk", {"x": "x" * 2**24})}))
    with pytest.raises(VerificationFailed, match=r"has more than 16,777,216 bytes|has a line of more than"):
        judged(packed(tmp_path / "b.tar", done, contents))


@pytest.mark.parametrize("at", [1e300, -1e300, 1e17, -1e17])
def test_a_check_at_a_time_that_no_calendar_has_is_refused(at: float, tmp_path: Path) -> None:
    found = evidence(tmp_path)
    done = results(found)
    late = replace(done, run=replace(done.run, started_at=at, ended_at=at))
    contents = files(done, found) | {"results.json": late.to_bytes()}
    with pytest.raises(VerificationFailed, match="outside of the years 1970 to 9999"):
        judged(packed(tmp_path / "late.tar", done, contents))


def test_the_past_of_a_gpu_is_read_from_bundles_without_failed_values(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for i, factor in enumerate((1.0, 1.0, 0.7)):
        scenario = {"rates": {"memory": {"2": factor}}}
        found = evidence(tmp_path, **scenario)
        done = results(found, run=f"run{i}", at=START + i)
        packed(store / f"run{i}.tar", done, files(done, found))
    (store / "other.tar").write_bytes(b"no bundle")
    earlier = history.read([store])
    assert len(earlier.refused) == 1
    second = earlier.past[found.gpus[2].uuid]
    assert second.runs == ("run0", "run1", "run2")
    assert len(second.figures["memory"]) == 2
    assert len(second.figures["matmul-bf16"]) == 3
    assert second.counters == {"remapped rows": 0}


def test_the_checks_between_nodes_are_made_at_one_time_which_counts_once() -> None:
    """Time counted once for each check exceeded that from challenge to receipt, so bundles were refused."""
    contents = judged(Path(__file__).parents[2] / "results/fabric-2xh200/two-ranks-nvlink.tar")
    run = contents.results.run
    assert 0 < contents.measured_seconds <= run.ended_at - run.started_at + 1


def test_verify_says_at_which_level_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle(tmp_path / "n1.tar", tmp_path, left_out="memory")
    assert main(["verify", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\ncheck      pass at level quick, judged again from " in shown
    assert "\n           its run left out what its manifest asks for: memory\n" in shown
    assert main(["verify", "--json", str(path)]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["recomputed"]["check_level"] == "quick"
    assert main(["compare", str(path)]) == 0
    assert "its run left out what its manifest asks for: memory" in capsys.readouterr().out


def test_what_a_machine_or_its_manifest_leaves_out_is_not_told(tmp_path: Path) -> None:
    one_gpu = verify_bundle(bundle(tmp_path / "n1.tar", tmp_path, count=1), recompute)
    passive = verify_bundle(bundle(tmp_path / "n2.tar", tmp_path, level="passive"), recompute)
    for verdict in (one_gpu, passive):
        assert isinstance(verdict.contents, CheckContents)
        assert "left out" not in {finding.check for finding in verdict.contents.results.findings}
