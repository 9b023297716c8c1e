"""Records of runs are found again; results of many nodes reduce to one exit code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.bundle.verify import verify_bundle
from bench.cli.push import _show_many, _show_one
from bench.node_check.recompute_any import recompute
from bench.push.mirror import read_status
from bench.push.push_record import Record, Records
from bench.push.request import Outcome, Result, exit_code, to_json
from bench.push.screen import ended
from tests.node_check import made

RESULTS = Path(__file__).parents[2] / "results"

R = Record(
    "aaaa00000000", "p1p1p1", "gpu1", "10.0.0.1", None, None, None, None, False, "/home/me/.bench", "docker",
    "sha256:i", "m" * 64, "/here/results", None, None, 7200, False, 100,
)  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records(tmp_path / "runs")
    made.save(R)
    made.save(dataclasses.replace(R, run_id="bbbb00000000", host="gpu2", address="10.0.0.2"))
    made.save(dataclasses.replace(R, run_id="cccc00000000", push="p2p2p2", began_at=200))
    return made


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ([], ["cccc00000000"]),
        (["aa"], ["aaaa00000000"]),
        (["p1p"], ["aaaa00000000", "bbbb00000000"]),
        (["gpu1"], ["cccc00000000"]),
        (["gpu2", "cccc00000000"], ["bbbb00000000", "cccc00000000"]),
    ],
)
def test_runs_are_found_by_host_run_or_bundle_name(
    records: Records, names: list[str], ids: list[str]
) -> None:
    assert sorted(record.run_id for record in records.find(names)) == ids


@pytest.mark.parametrize(
    ("host", "name"),
    [("gpu1", "gpu1-aaaa00000000.tar"), ("me@[fe80::1]:22", "me__fe80__1__22-aaaa00000000.tar")],
)
def test_a_bundle_is_named_after_its_node(host: str, name: str) -> None:
    """The bundle holds no host name, and among forty bundles the slow node must be identifiable."""
    assert dataclasses.replace(R, host=host).bundle == Path("/here/results") / name


def test_a_bundle_of_a_slurm_job_is_named_after_the_login_node_and_the_nodes_of_the_job() -> None:
    ran = dataclasses.replace(R, host="login", slurm_job="17", slurm_nodes="n[3,7]")
    assert ran.bundle == Path("/here/results/login-n_3_7_-aaaa00000000.tar")


def test_pushes_of_a_manifest_to_other_nodes_of_a_cluster_are_other_runs(records: Records) -> None:
    records.save(dataclasses.replace(R, slurm_where="--nodelist=n1", state="running"))

    def found(where: str | None) -> str | None:
        record = records.unfinished(dataclasses.replace(R.asked, slurm_where=where), "docker")
        return None if record is None else record.run_id

    assert found("--nodelist=n1") == "aaaa00000000"
    assert found("--nodelist=n2") is None
    assert found(None) == "cccc00000000"


def test_a_home_that_cannot_be_written_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # as root, a folder without rights can be written
    with pytest.raises(EnvironmentCannot, match="runs cannot be recorded") as refused:
        Records(tmp_path / "file/runs").refuse_read_only()
    assert refused.value.advice and "XDG_STATE_HOME" in refused.value.advice
    Records(tmp_path / "runs").refuse_read_only()


def test_pushes_to_two_clusters_of_one_name_are_other_runs(records: Records) -> None:
    """Each has its configuration of ssh, where its login node is called `login`."""
    one = {"host": "login", "address": "login", "state": "running", "ssh_config": "/here/north"}
    north = records.save(dataclasses.replace(R, **one)).asked  # type: ignore[arg-type]
    for config, found in (("/here/north", True), ("/here/south", False), (None, False)):
        unfinished = records.unfinished(dataclasses.replace(north, ssh_config=config), "docker")
        assert (unfinished is not None) is found


def test_what_slurm_says_of_a_job_is_read() -> None:
    status = read_status("dead\nwhy CANCELLED by 1000\non n[3,7]\n")
    assert (status.reason, status.on) == ("CANCELLED by 1000", "n[3,7]")
    for line in ("why \033[2J", "on /etc/passwd", "on"):
        with pytest.raises(EnvironmentCannot):
            read_status(f"waiting\n{line}\n")


def test_an_unknown_run_is_reported(records: Records, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match='no run is called "gpu9"'):
        records.find(["gpu9"])
    with pytest.raises(BadInput, match="nothing was pushed"):
        Records(tmp_path / "none").find([])


def test_the_newest_unfinished_run_of_the_same_manifest_and_place(records: Records) -> None:
    found = records.unfinished(R.asked, "docker")
    assert found is not None and found.run_id == "cccc00000000"
    records.move(found, "fetched")
    found = records.unfinished(R.asked, "docker")
    assert found is not None and found.run_id == "aaaa00000000"
    assert records.unfinished(R.asked, "none") is None
    for other in ({"manifest_sha256": "n" * 64}, {"address": "10.0.0.9"}):
        assert records.unfinished(dataclasses.replace(R.asked, **other), "docker") is None  # type: ignore[arg-type]


def test_a_run_of_several_nodes_continues_with_the_same_number_and_roles(records: Records) -> None:
    pair = dataclasses.replace(R, address="10.0.1.1", nodes=2, run_id="eeee00000000")
    records.save(pair)
    changed = {"address": "10.0.1.2", "follows": True, "run_id": "ffff00000000"}
    other = records.save(dataclasses.replace(pair, **changed))  # type: ignore[arg-type]
    for alone in (dataclasses.replace(each.asked, nodes=1) for each in (pair, other)):
        assert records.unfinished(alone, "docker") is None
    assert records.unfinished(pair.asked, "docker") == pair
    assert records.unfinished(pair.asked, "docker", follows=True) is None
    assert records.unfinished(other.asked, "docker", follows=True) == other


def test_a_damaged_push_record_is_named(records: Records) -> None:
    (records.folder / "dddd00000000.json").write_text("{}")
    with pytest.raises(BadInput, match="dddd00000000"):
        records.all()


def result(outcome: Outcome, code: int = 3) -> Result:
    kinds = {2: BadInput, 3: EnvironmentCannot}
    return Result("h", outcome=outcome, error=kinds[code]("x") if outcome == "failed" else None)


def checked(folder: Path, **gpu: Any) -> Result:
    """The result of a node check in which NVML answers `gpu` for GPU 0."""
    bundle = made.bundle(folder / "node.tar", folder, count=2, gpus={"0": gpu})
    return Result("h", outcome="done", verdict=verify_bundle(bundle, recompute))


def test_a_node_that_does_not_pass_its_check_has_its_exit_code(tmp_path: Path) -> None:
    good, bad = checked(tmp_path), checked(tmp_path, MigMode=[1, 1])
    assert (good.checked is not None, bad.checked is not None) == (True, True)
    assert [good.exit_code, bad.exit_code] == [0, 1]
    assert exit_code([good, bad]) == 1
    assert exit_code([good, bad, result("failed")]) == 5
    assert ended(good).startswith("PASS ")
    assert ended(bad).startswith("FAIL alike: ")


def test_what_is_on_trust_about_a_node_is_told_beside_its_verdict(tmp_path: Path) -> None:
    told = 'no vendor\'s peak is known of "NVIDIA X900": its speed is taken on trust'
    unknown = checked(tmp_path, Name="NVIDIA X900")
    assert unknown.worst is not None
    assert unknown.worst.startswith("alike: GPU 1: model NVIDIA H200; no vendor")
    assert unknown.worst.endswith(told)


def test_text_and_json_list_failed_nodes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = checked(tmp_path), checked(tmp_path, EnforcedPowerLimit=650_000)
    assert (to_json(good)["worst"], to_json(bad)["worst"]) == (
        None,
        "power: GPU 0 limit: 650 W, expected 700 W",
    )
    named = [
        dataclasses.replace(r, host=f"n{number}") for number, r in enumerate([good, bad, result("failed")])
    ]
    _show_many(named)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows if row[0] == "n"] == ["n1", "n2", "n0"]


def test_a_node_with_a_slowed_gpu_is_marked_among_many(capsys: pytest.CaptureFixture[str]) -> None:
    def node(name: str, bundle: str) -> Result:
        return Result(name, outcome="done", verdict=verify_bundle(RESULTS / bundle, recompute))

    hot, good = node("hot", "slowed-h100/five-models.tar"), node("good", "side-by-side-h200/vit-gelu.tar")
    assert to_json(good)["slowed"] is None
    assert to_json(hot)["slowed"].startswith("GPU 0 by software thermal slowdown, at ")
    _show_many([hot, good])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("SLOWED: GPU 0 by software thermal slowdown, at") == 1


def test_a_nodes_text_about_gpus_contains_no_terminal_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = checked(tmp_path, VbiosVersion="96\033]0;mine\007")
    _show_one(strange)
    assert "\033" not in ended(strange) + capsys.readouterr().out


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([result("done"), result("unchanged"), result("would"), result("running")], 0),
        ([result("failed")], 3),
        ([result("failed", 2), result("failed", 2)], 2),
        ([result("failed", 2), result("failed", 3)], 3),
        ([result("done"), result("failed")], 5),
        ([result("incomplete")], 5),
        ([result("incomplete"), result("failed")], 5),
    ],
)
def test_one_exit_code_for_all(results: list[Result], code: int) -> None:
    assert exit_code(results) == code


def test_the_state_of_a_run_as_reported_by_its_node() -> None:
    text = (
        "alive\nfile 12 log.txt\nfile 99 out/0123456789ab/journal.jsonl\n"
        "file 7 out/0123456789ab/logs/one-2.txt\n"
        "request 123 456\nbundle 1000\n"
    )
    status = read_status(text)
    assert (status.state, status.code, status.request, status.bundle_bytes) == (
        "alive",
        None,
        "123 456",
        1000,
    )
    assert set(status.files.values()) == {12, 99, 7}
    assert read_status("exit 5\n").code == 5


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "out/0a/../../x", "out/0a/logs/../../x.txt", "out/0a/logs/a b.txt"]
)
def test_a_file_that_was_not_requested_is_not_mirrored(name: str) -> None:
    assert read_status(f"alive\nfile 5 {name}\n").files == {}


def test_an_unreadable_state_counts_as_dead() -> None:
    assert read_status("").state == "dead"
    assert read_status("exit \n").state == "dead"
