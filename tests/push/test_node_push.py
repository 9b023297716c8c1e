"""A push follows a node's preflight: how software gets there, and which job starts."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack, nullcontext
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.images.container import NOBODY
from bench.images.engines import EngineFacts
from bench.images.variants import find_variant
from bench.node_check.check_manifest import load_any
from bench.push import mirror, pull_image, push_to_node, run_script, ship
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_preflight import ChosenEngine
from bench.push.node_survey import InstalledEngine
from bench.push.push_record import Records
from bench.push.push_to_node import NodePush
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.run_script import GroupMember, Job
from bench.push.ship import Shipped
from bench.push.slurm import Slurm
from tests.push.test_mirror import KEY
from tests.push.test_missing_kernels import node
from tests.push.test_push_record import R
from tests.push.test_push_to_node import QUICKSTART, Silent
from tests.push.test_without_engine import DIGEST

OTHER = "sha256:" + "cd" * 32
IDENTITY = Identity(OTHER, (DIGEST,))
DOCKER = InstalledEngine(EngineFacts("docker", "27.5.1", "cdi", None))
SURVEY = dataclasses.replace(node(), engines={"docker": DOCKER})
CPU, CUDA = find_variant("cpu"), find_variant("cuda13")
IMAGE: Any = SimpleNamespace(variant=CUDA, config=OTHER)
IN_DOCKER = ChosenEngine(SURVEY, "docker", IMAGE, line_rate=5e6)
IN_VENV = ChosenEngine(SURVEY, "venv", None, CUDA)
BY_PYTHON = ChosenEngine(SURVEY, "none", None)
IMAGE_THERE = Shipped("bench-push:cdcd", 1_000, changed=True, identity=IDENTITY)
CODE_THERE = Shipped("/home/ubuntu/.bench/code/12", 100, changed=True)


def pushed(tmp_path: Path, part: dict[str, Any] | None = None, **options: Any) -> tuple[NodePush, list[str]]:
    said: list[str] = []

    class Says(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    given = {"manifest": load_any(QUICKSTART), "engine": "auto", "push": "0011"} | options
    request = PushRequest(out=tmp_path, key=KEY, **given)
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Says())
    return NodePush(HostPart(**{"host": Host("gpu1", "gpu1")} | (part or {})), request, shared), said


# --- the job ----------------------------------------------------------------------------------------------


def job(tmp_path: Path, chosen: ChosenEngine, part: dict[str, Any] | None = None, **options: Any) -> Job:
    shipped = IMAGE_THERE if chosen.engine == "docker" else CODE_THERE
    one, _ = pushed(tmp_path, part, **options)
    return one._job(chosen, shipped, R)


def test_a_job_in_a_container_has_its_image_its_user_and_its_gpus(tmp_path: Path) -> None:
    assert job(tmp_path, IN_DOCKER, budget_seconds=60.0) == Job(
        run_id=R.run_id,
        place="/home/ubuntu/.bench",
        engine="docker",
        runnable="bench-push:cdcd",
        identity=IDENTITY,
        python=PushRequest.__dataclass_fields__["python"].default,
        user=(1000, 1000),
        memory_bytes=SURVEY.memory_bytes,
        gpus="cdi",
        on_cpu=False,
        budget_seconds=60.0,
        claim="/home/ubuntu/.bench/.claim-0011-0",
    )


def test_a_job_of_root_runs_as_nobody(tmp_path: Path) -> None:
    root = dataclasses.replace(IN_DOCKER, survey=dataclasses.replace(SURVEY, uid=0, gid=0))
    assert job(tmp_path, root).user == (NOBODY, NOBODY)


def test_a_job_without_a_container_has_its_nodes_claim_and_no_access_to_gpus(tmp_path: Path) -> None:
    in_venv = dataclasses.replace(CODE_THERE, environment=DIGEST)
    one, _ = pushed(tmp_path, {"node": 1, "nodes": 2})
    found = one._job(IN_VENV, in_venv, R)
    assert (found.claim, found.environment) == ("/home/ubuntu/.bench/.claim-0011-1", DIGEST)
    assert (found.gpus, found.on_cpu, found.identity) == (None, False, None)
    assert job(tmp_path, BY_PYTHON).claim == "/home/ubuntu/.bench/.claim-0011-0"


@pytest.mark.parametrize(
    ("chosen", "options", "gpus", "on_cpu"),
    [
        (IN_DOCKER, {}, "cdi", False),
        (IN_DOCKER, {"on_cpu": True}, None, True),
        (dataclasses.replace(IN_DOCKER, image=SimpleNamespace(variant=CPU)), {}, None, True),
        (dataclasses.replace(IN_DOCKER, survey=dataclasses.replace(SURVEY, gpus=())), {}, None, True),
        (
            dataclasses.replace(IN_DOCKER, survey=dataclasses.replace(SURVEY, gpus=())),
            {"slurm": Slurm()},
            "cdi",
            False,
        ),
        (dataclasses.replace(IN_VENV, variant=CPU), {}, None, True),
        (dataclasses.replace(IN_VENV, variant=CPU, engine="none"), {}, None, False),
        (BY_PYTHON, {"slurm": Slurm()}, "cdi", False),
        (BY_PYTHON, {}, None, False),
        (BY_PYTHON, {"on_cpu": True}, None, True),
    ],
)
def test_a_job_trains_on_gpus_where_node_image_and_request_have_them(
    tmp_path: Path, chosen: ChosenEngine, options: dict[str, Any], gpus: str | None, on_cpu: bool
) -> None:
    found = job(tmp_path, chosen, **options)
    assert (found.gpus, found.on_cpu) == (gpus, on_cpu)


def test_a_check_of_a_node_that_lost_its_gpus_does_not_move_to_the_cpu(tmp_path: Path) -> None:
    manifest = load_any(QUICKSTART.with_name("node-check.json"))
    lost = dataclasses.replace(IN_DOCKER, survey=dataclasses.replace(SURVEY, gpus=()))
    found = job(tmp_path, lost, manifest=manifest, level="standard")
    assert (found.checks, found.level, found.gpus, found.on_cpu) == (True, "standard", None, False)


def test_a_host_has_a_python_of_its_own_below_its_home(tmp_path: Path) -> None:
    assert job(tmp_path, BY_PYTHON, python="~/venv/bin/python").python == "/home/ubuntu/venv/bin/python"
    host = Host("gpu1", "gpu1", python="/opt/python")
    assert job(tmp_path, BY_PYTHON, {"host": host}, python="python3").python == "/opt/python"


def test_a_job_that_trains_with_others_knows_its_place_among_them(tmp_path: Path) -> None:
    part = {"node": 1, "nodes": 3}
    found = job(tmp_path, IN_DOCKER, part, together="10.0.0.1:29500", meet_in_public=True)
    assert found.member == GroupMember(3, 1, "10.0.0.1:29500", in_public=True)
    assert job(tmp_path, IN_DOCKER, part).member is None
    assert job(tmp_path, IN_DOCKER, continued=R).moved
    assert not job(tmp_path, IN_DOCKER).moved


@pytest.mark.parametrize(
    ("options", "secret"),
    [
        ({}, b""),
        ({"together": "10.0.0.1:29500"}, b"s3cret"),
        ({"slurm": Slurm(nodes=1)}, b""),
        ({"slurm": Slurm(nodes=2)}, b"s3cret"),
    ],
)
def test_only_nodes_that_train_together_get_a_secret(
    tmp_path: Path, options: dict[str, Any], secret: bytes
) -> None:
    assert pushed(tmp_path, meet_secret=b"s3cret", **options)[0]._meet_secret == secret


def test_the_data_of_a_manifest_are_folders_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "data_folders", lambda manifest: [Path("/data/a")])
    assert job(tmp_path, IN_DOCKER).data == (PurePosixPath("/data/a"),)


# --- the way there ----------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The ways in which something was shipped, each with what tells it from others."""
    made: list[tuple[Any, ...]] = []

    def assembly(*given: Any, **options: Any) -> Any:
        made.append(("assembly", *given[1:4], options))
        return SimpleNamespace(deliver="in pieces")

    def shipped(node: Any, survey: Any, engine: str, image: Any, *_: Any, assemble: Any) -> Shipped:
        made.append(("image", engine, image, assemble))
        return IMAGE_THERE

    def code(node: Any, store: Any, progress: Any) -> Shipped:
        made.append(("code", node.claim.path))
        return CODE_THERE

    def pull(node: Any, survey: Any, engine: str, name: str, required: str | None) -> Shipped:
        made.append(("pull", engine, name, required))
        return dataclasses.replace(IMAGE_THERE, changed=False)

    monkeypatch.setattr(push_to_node, "Assembly", assembly)
    monkeypatch.setattr(
        push_to_node, "claimed", lambda node, claim: nullcontext(SimpleNamespace(claim=claim))
    )
    monkeypatch.setattr(ship, "with_stored_images", lambda node, survey, engine: survey)
    monkeypatch.setattr(ship, "ship", shipped)
    monkeypatch.setattr(ship, "ship_code", code)
    monkeypatch.setattr(pull_image, "pull", pull)
    return made


def test_an_image_is_assembled_from_the_given_indexes_or_sent_whole(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    one, _ = pushed(tmp_path, index="https://index/simple", mirror="http://mirror/debian")
    assert one._ship(IN_DOCKER, ExitStack()) == IMAGE_THERE
    assert calls[0] == (
        "assembly", SURVEY, "docker", IMAGE,
        {"index": "https://index/simple", "mirror": "http://mirror/debian", "rate": 5e6},
    )  # fmt: skip
    assert calls[1] == ("image", "docker", IMAGE, "in pieces")
    assert (one.result.sent_bytes, one.result.changed, one.result.image) == (1_000, True, OTHER)
    calls.clear()
    pushed(tmp_path, assemble=False)[0]._ship(IN_DOCKER, ExitStack())
    assert calls[0][-1] == {"index": "", "mirror": "", "rate": 5e6}
    assert calls[1] == ("image", "docker", IMAGE, None)


def test_an_image_is_pulled_where_that_is_asked_for(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    one, _ = pushed(tmp_path, pull="registry/bench:cuda13")
    assert not one._ship(ChosenEngine(SURVEY, "docker", None), ExitStack()).changed
    assert calls == [("pull", "docker", "registry/bench:cuda13", None)]


def test_an_engine_that_does_not_answer_gets_no_image(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(EnvironmentCannot, match="docker does not answer: no image can be loaded"):
        pushed(tmp_path)[0]._ship(ChosenEngine(SURVEY, "docker", None), ExitStack())
    assert calls == []


def test_a_python_of_the_node_gets_the_code_alone(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    one, _ = pushed(tmp_path)
    assert one._ship(BY_PYTHON, ExitStack()) == CODE_THERE
    assert calls == [("code", "/home/ubuntu/.bench/.claim-0011-0")]
    assert one.result.image is None


class Installer:
    """An environment of which the index lacks flash-attn; it notes the plan that it was given."""

    locked = SimpleNamespace(without=("flash-attn",))

    def __init__(self) -> None:
        self.installed: list[object] = []

    def ask(self) -> str:
        return "asked now"

    def install(self, plan: object, node: object) -> Any:
        self.installed.append(plan)
        return SimpleNamespace(digest=DIGEST, sent_bytes=7, changed=False)


@pytest.mark.parametrize(("planned", "plan"), [(None, "asked now"), ("planned before", "planned before")])
def test_an_environment_is_installed_beside_the_code(
    tmp_path: Path, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, planned: Any, plan: str
) -> None:
    installer = Installer()
    monkeypatch.setattr(push_to_node, "installer_for", lambda push, chosen, code: installer)
    one, said = pushed(tmp_path)
    shipped = one._ship(dataclasses.replace(IN_VENV, planned=planned), ExitStack())
    assert shipped == dataclasses.replace(CODE_THERE, sent_bytes=107, environment=DIGEST)
    assert installer.installed == [plan]
    assert one.result.environment == DIGEST
    assert any("without flash-attn: no index has these compiled wheels (--wheelhouse DIR)" in t for t in said)


def test_another_environment_than_the_manifests_is_refused(
    tmp_path: Path, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "installer_for", lambda push, chosen, code: Installer())
    for asked, refused in ((DIGEST, False), (OTHER, True)):
        monkeypatch.setattr(push_to_node, "wanted_environment", lambda manifest, asked=asked: asked)
        one, _ = pushed(tmp_path)
        if not refused:
            assert one._ship(IN_VENV, ExitStack()).environment == DIGEST
            continue
        with pytest.raises(EnvironmentCannot) as caught:
            one._ship(IN_VENV, ExitStack())
        assert caught.value.message == f"the environment is {DIGEST}, the manifest asks for {OTHER}"


# --- the record -------------------------------------------------------------------------------------------


def test_a_run_is_recorded_with_how_its_node_is_reached(tmp_path: Path) -> None:
    host = Host("gpu1", "10.0.0.7", "me", 2222, tmp_path / "id", "/opt/python", ("-J", "gate"))
    one, _ = pushed(
        tmp_path,
        {"host": host, "nodes": 2},
        valid_seconds=86_400,
        keep=True,
        ssh_config=tmp_path / "config",
        ledger=tmp_path / "ledger.jsonl",
    )
    made = one._record_run(IN_DOCKER, IMAGE_THERE, None)
    assert (made.host, made.address, made.user, made.port) == ("gpu1", "10.0.0.7", "me", 2222)
    assert (made.identity, made.ssh_config) == (str(tmp_path / "id"), str(tmp_path / "config"))
    assert (made.python, made.ssh_arguments, made.local) == ("/opt/python", ("-J", "gate"), False)
    assert (made.place, made.engine, made.image) == ("/home/ubuntu/.bench", "docker", OTHER)
    assert (made.key, made.valid_seconds, made.keep) == (str(KEY.path), 86_400, True)
    assert (made.environment, made.follows, made.state) == (None, False, "begun")
    assert (made.mirror / "manifest.json").read_bytes() == QUICKSTART.read_bytes()
    assert (made.nodes, made.slurm_where) == (1, None)
    again = one._record_run(IN_VENV, CODE_THERE, made)
    assert (again.run_id, again.engine, again.image) == (made.run_id, "venv", OTHER)


def test_a_job_of_several_nodes_is_recorded_with_where_it_runs(tmp_path: Path) -> None:
    slurm = Slurm(partition="gpu", nodes=4)
    one, _ = pushed(tmp_path, slurm=slurm, ledger=tmp_path / "ledger.jsonl")
    made = one._record_run(BY_PYTHON, CODE_THERE, None)
    assert (made.nodes, made.slurm_where, made.image) == (4, "--partition=gpu", None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The preparation of the node, and the job that was started on it."""
    did: list[tuple[Any, ...]] = []
    monkeypatch.setattr(run_script, "prepare", lambda node, *given: did.append(("prepare", *given)))
    monkeypatch.setattr(run_script, "start", lambda node, job: did.append(("start", job)) or "4711")
    monkeypatch.setattr(mirror, "restore_journal", lambda *given: did.append(("restore", *given[1:])) or True)
    return did


def test_a_run_starts_after_its_record_is_saved(tmp_path: Path, started: list[tuple[Any, ...]]) -> None:
    one, said = pushed(tmp_path, ledger=tmp_path / "ledger.jsonl", meet_secret=b"s3cret")
    record = one._start(IN_DOCKER, IMAGE_THERE, None)
    assert (record.state, record.slurm_job) == ("running", "4711")
    assert (one.result.run_id, one.result.changed, one.result.phase) == (record.run_id, True, "start")
    (prepared, job, manifest, challenge, secret), start = started
    assert (prepared, manifest, secret) == ("prepare", QUICKSTART.read_bytes(), b"")
    assert json.loads(challenge)["run_id"] == record.run_id == job.run_id
    assert start == ("start", job)
    assert (record.mirror / "run.sh").read_text() == run_script.script(job)
    assert said == []


def test_the_journal_of_a_continued_run_is_restored_for_its_user(
    tmp_path: Path, started: list[tuple[Any, ...]]
) -> None:
    one, said = pushed(tmp_path, ledger=tmp_path / "ledger.jsonl")
    record = one._start(IN_DOCKER, IMAGE_THERE, None)
    for uid, chosen, owner in (
        (1000, IN_DOCKER, ""),
        (0, IN_DOCKER, f"{NOBODY}:{NOBODY}"),
        (0, BY_PYTHON, ""),
    ):
        started.clear()
        there = dataclasses.replace(chosen, survey=dataclasses.replace(SURVEY, uid=uid, gid=uid))
        one._start(there, IMAGE_THERE, record)
        (restored,) = [did for did in started if did[0] == "restore"]
        assert restored[2] == owner
    assert "was restored on the node" in said[-1] and record.run_id in said[-1]


def test_a_node_that_follows_gets_no_challenge(tmp_path: Path, started: list[tuple[Any, ...]]) -> None:
    part = {"node": 1, "nodes": 2}
    one, _ = pushed(
        tmp_path, part, ledger=tmp_path / "ledger.jsonl", together="10.0.0.1:29500", meet_secret=b"s"
    )
    record = one._start(IN_DOCKER, IMAGE_THERE, None)
    assert record.follows
    assert started[0][3:] == (b"{}", b"s")


# --- how far a push goes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "changed", "outcome", "done"),
    [
        ("preflight", True, "would", []),
        ("ship", True, "ready", ["ship"]),
        ("ship", False, "unchanged", ["ship"]),
        ("fetch", True, "running", ["ship", "start", "watch"]),
    ],
)
def test_a_push_goes_as_far_as_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str, changed: bool, outcome: str, done: list[str]
) -> None:
    did: list[str] = []
    one, _ = pushed(tmp_path, until=until)
    monkeypatch.setattr(push_to_node.NodePreflight, "choose", lambda self: IN_DOCKER)
    shipped = dataclasses.replace(IMAGE_THERE, changed=changed)
    monkeypatch.setattr(one, "_ship", lambda chosen, stack: did.append("ship") or shipped)
    monkeypatch.setattr(one, "_start", lambda *_: did.append("start") or R)
    monkeypatch.setattr(one, "_watch_to_the_end", lambda record: did.append("watch") or one.end("running"))
    one._start_run(None)
    assert (one.result.outcome, did) == (outcome, done)
