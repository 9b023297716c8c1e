"""Each step of a preflight by itself: what a run needs on its node, what it lacks, and what is told of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.sizes import size_text
from bench.images.archive import Identity
from bench.images.engines import EngineFacts
from bench.images.engines.preflight import OUT_BYTES
from bench.images.standalone_python import StandalonePython
from bench.images.variants import find_variant
from bench.node_check.check_manifest import load_any
from bench.push import node_preflight
from bench.push.connection import Unreachable
from bench.push.engine_choice import EngineChoice
from bench.push.forecast import Forecast
from bench.push.node_findings import Need, PreflightFinding
from bench.push.node_preflight import ChosenEngine, NodePreflight, installer_for
from bench.push.node_survey import InstalledEngine, NodePython, StoredImage, Survey
from bench.push.remote import CommandResult
from bench.push.request import Result
from bench.push.shared_place import PlaceClaim
from bench.push.slurm import Slurm
from tests.push.test_missing_kernels import node
from tests.push.test_push_to_node import QUICKSTART
from tests.push.test_without_engine import P311, push

CPU, CUDA = find_variant("cpu"), find_variant("cuda13")
CHECK = QUICKSTART.with_name("node-check.json")
CONFIG, LAYERS = "sha256:" + "cd" * 32, ("sha256:1", "sha256:2", "sha256:3")
STOP, WARN = PreflightFinding("stop", "it is full", "free some space"), PreflightFinding("warn", "it is busy")


def image(**changes: Any) -> Any:
    facts = SimpleNamespace(identity=Identity(CONFIG, LAYERS), layers=LAYERS, labels={})
    given = {"variant": CUDA, "config": CONFIG, "unpacked_bytes": 9_000, "facts": facts}
    return SimpleNamespace(**given | changes)


def there(engine: str, *stored: StoredImage, **changes: Any) -> Survey:
    """Return a node with one engine that answers, and these images."""
    found = InstalledEngine(EngineFacts(engine, "27.5.1", "cdi", None), images=stored)
    return dataclasses.replace(node(), engines={engine: found}, **changes)


class Store:
    """The images of this machine: each layer is sent in ten bytes times its number, and ten more."""

    def __init__(self, found: Any = None) -> None:
        self.found, self.asked = found, list[tuple[object, object]]()

    def packed_bytes(self, _image: Any, number: int) -> int:
        return 10 * (number + 1)

    def image(self, name: str | None, driver: str | None) -> Any:
        self.asked.append((name, driver))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def code(self) -> str:
        return "a blob"


def preflight(tmp_path: Path, store: Store | None = None, **options: Any) -> NodePreflight:
    one, _ = push(tmp_path, **{"on_cpu": False, "source": tmp_path} | options)
    one.shared = dataclasses.replace(one.shared, store=store or Store())  # type: ignore[arg-type]
    shown: list[str] = []
    phases: set[str] = set()

    def show(result: Result, text: str = "") -> None:
        shown.append(text)
        phases.add(result.phase)
        assert phases == {"preflight"}

    one.shared.view.show = show  # type: ignore[method-assign]
    one.shown = shown  # type: ignore[attr-defined]
    return NodePreflight(one)


def told(steps: NodePreflight) -> list[str]:
    shown: list[str] = steps._push.shown  # type: ignore[attr-defined]
    return shown


# --- what a run needs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "stored", "send", "unpacked"),
    [
        ("docker", (), 60, 9_000),
        ("docker", (StoredImage("other", LAYERS[:2]),), 30, 9_000),
        ("docker", (StoredImage(CONFIG, LAYERS),), 0, 0),
        ("podman", (StoredImage("other", LAYERS[:2]),), 60, 9_000),
        ("apptainer", (StoredImage(CONFIG, LAYERS),), 0, 9_000),  # its images are files, as large again
    ],
)
def test_a_run_needs_room_for_what_is_sent_and_unpacked(
    tmp_path: Path, engine: str, stored: tuple[StoredImage, ...], send: int, unpacked: int
) -> None:
    need = preflight(tmp_path)._need(there(engine, *stored), engine, image(), CUDA)
    assert need == Need(
        engine, CUDA, on_cpu=False, gpus=None, place_bytes=OUT_BYTES + send, engine_bytes=unpacked,
        send_bytes=send,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "variant", "changes"),
    [
        ({}, CUDA, {}),
        ({}, None, {}),
        ({}, CPU, {"on_cpu": True}),
        ({"on_cpu": True}, CUDA, {"on_cpu": True}),
        ({"slurm": Slurm()}, CUDA, {"slurm": True}),
        ({"manifest": CHECK}, CUDA, {"checks": True}),
    ],
)
def test_a_run_needs_what_its_request_and_its_variant_say(
    tmp_path: Path, options: dict[str, Any], variant: Any, changes: dict[str, Any]
) -> None:
    manifest = options.pop("manifest", None)
    steps = preflight(tmp_path, **options)
    asked = load_any(manifest or QUICKSTART)
    steps._push.request = dataclasses.replace(steps._push.request, manifest=asked)
    need = steps._need(there("docker"), "venv", None, variant)
    gpus = None if options.get("on_cpu") else asked.gpus
    usual = Need("venv", variant, on_cpu=False, gpus=gpus, brings_python=True)
    assert need == dataclasses.replace(usual, **changes)
    named = preflight(tmp_path, python="/opt/python")._need(there("docker"), "venv", None, variant)
    assert not named.brings_python


def test_as_many_gpus_are_needed_as_the_manifest_asks_for(tmp_path: Path) -> None:
    for on_cpu, gpus in ((False, 4), (True, None)):
        steps = preflight(tmp_path, on_cpu=on_cpu)
        manifest = dataclasses.replace(steps._push.request.manifest, gpus=4)  # type: ignore[type-var]
        steps._push.request = dataclasses.replace(steps._push.request, manifest=manifest)
        assert steps._need(there("docker"), "none", None, None).gpus == gpus


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, False),
        ({"image": "bench:cpu"}, True),
        ({"pull": "registry/bench"}, True),
        ({"slurm": Slurm()}, True),
    ],
)
def test_a_request_for_an_image_and_a_job_need_a_container(
    tmp_path: Path, options: dict[str, Any], needed: bool
) -> None:
    assert preflight(tmp_path, **options)._needs_image == needed


def test_a_manifest_that_names_an_image_needs_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_preflight, "wanted_image", lambda manifest: CONFIG)
    assert preflight(tmp_path)._needs_image


# --- which image and which environment --------------------------------------------------------------------


def test_the_image_is_that_of_the_nodes_driver(tmp_path: Path) -> None:
    there_is = there("docker")
    for options, asked in (
        ({"image": "mine.tar"}, ("mine.tar", there_is.host.driver)),
        ({"on_cpu": True}, (None, None)),
    ):
        store = Store(image())
        assert preflight(tmp_path, store, **options)._image_for(there_is) == (store.found, None)
        assert store.asked == [asked]


def test_no_image_is_looked_for_where_none_can_be_loaded(tmp_path: Path) -> None:
    store = Store(image())
    silent = dataclasses.replace(node(), engines={"docker": InstalledEngine(None, "no answer")})
    assert preflight(tmp_path, store)._image_for(silent) == (None, None)
    assert preflight(tmp_path, store, pull="registry/bench")._image_for(there("docker")) == (None, None)
    assert store.asked == []
    both = dataclasses.replace(silent, engines={**silent.engines, **there("podman").engines})
    assert preflight(tmp_path, store)._image_for(both) == (store.found, None)


@pytest.mark.parametrize(("advice", "told_advice"), [("build one", "build one"), (None, "")])
def test_an_image_that_is_not_here_is_a_trouble(tmp_path: Path, advice: Any, told_advice: str) -> None:
    store = Store(EnvironmentCannot("no image of cuda13 is here", advice=advice))
    found, trouble = preflight(tmp_path, store)._image_for(there("docker"))
    assert (found, trouble) == (None, PreflightFinding("stop", "no image of cuda13 is here", told_advice))


def test_a_trouble_with_the_image_counts_for_engines_that_answer(tmp_path: Path) -> None:
    steps = preflight(tmp_path)
    survey = there("docker")
    silent = {"podman": InstalledEngine(None, "no answer")}
    survey = dataclasses.replace(survey, engines={**survey.engines, **silent})
    assert steps._candidate(survey, "docker", None, STOP).trouble == STOP
    assert steps._candidate(survey, "podman", None, STOP).trouble is None
    assert steps._candidate(survey, "docker", image(), None).need.variant == CUDA
    assert steps._candidate(survey, "podman", image(), None).need.variant is None
    assert steps._candidate(survey, "none", image(), STOP).need == Need("none", None, False, None)
    assert steps._candidate(survey, "none", image(), STOP).trouble is None


def test_an_environment_whose_lock_is_not_here_is_a_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[object, ...]] = []

    def read_locked(*given: object) -> None:
        read.append(given)
        raise BadInput("is missing", where="locks/cpu.txt", advice=advice)

    monkeypatch.setattr(node_preflight, "read_locked", read_locked)
    steps = preflight(tmp_path, on_cpu=True)
    advice: str | None = "name them: --source DIR"
    candidate = steps._candidate(there("docker"), "venv", image(), STOP)
    assert candidate.trouble == PreflightFinding("stop", "locks/cpu.txt is missing", advice or "")
    assert (candidate.need.variant, candidate.need.on_cpu) == (CPU, True)
    assert read == [(tmp_path, CPU, CPU.pythons[0], None)]
    advice = None
    assert steps._without_lock(CPU) == PreflightFinding("stop", "locks/cpu.txt is missing", "")
    monkeypatch.setattr(node_preflight, "read_locked", lambda *given: None)
    assert steps._candidate(there("docker"), "venv", None, None).trouble is None
    on_gpus = preflight(tmp_path)._candidate(there("docker"), "venv", None, None)
    by_driver = node_preflight.variant_for(node().host.driver)
    assert by_driver is not None and by_driver.driver is not None
    assert (on_gpus.need.variant, on_gpus.need.on_cpu) == (by_driver, False)


def test_the_variant_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = preflight(tmp_path)
    assert steps._variant_for(None) == CPU
    assert steps._variant_for("580.95.05") == CUDA
    oldest = steps._variant_for("100.0")
    assert (
        oldest.driver is not None
        and oldest == [variant for variant in node_preflight.images().variants if variant.driver][-1]
    )
    assert preflight(tmp_path, variant="cpu")._variant_for("580.95.05") == CPU
    drivers = [SimpleNamespace(driver=driver) for driver in ("600", None, "590", "580", "570")]
    others = dataclasses.replace(node_preflight.images(), variants=drivers)  # type: ignore[arg-type]
    monkeypatch.setattr(node_preflight, "images", lambda: others)
    monkeypatch.setattr(node_preflight, "variant_for", lambda driver: None)
    assert steps._variant_for("100.0").driver == "570"


def test_without_containers_only_engines_that_have_them_are_asked_where_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def choose(survey: Survey, candidates: list[Any]) -> Any:
        seen.append([each.need.engine for each in candidates])
        return SimpleNamespace(engine=candidates[0].need.engine)

    monkeypatch.setattr(node_preflight, "choose_engine", choose)
    monkeypatch.setattr(NodePreflight, "_candidate", lambda self, survey, engine, *_: SimpleNamespace(
        need=SimpleNamespace(engine=engine)))  # fmt: skip
    found = image()
    survey = there("docker")
    assert preflight(tmp_path, Store(found))._choose(survey)[1] is found
    assert preflight(tmp_path, Store(found), image="bench:cpu")._choose(survey)[1] is found
    assert preflight(tmp_path, Store(found), image="bench:cpu", engine="venv")._choose(survey)[1] is None
    assert seen == [["docker", "podman", "apptainer", "venv"], ["docker", "podman", "apptainer"], ["venv"]]
    silent = dataclasses.replace(survey, engines={"docker": InstalledEngine(None, "no answer")})
    assert preflight(tmp_path, Store(found))._choose(silent)[1] is None
    beside = dataclasses.replace(silent, engines={**silent.engines, **there("podman").engines})
    assert preflight(tmp_path, Store(found))._choose(beside)[1] is None


# --- findings ---------------------------------------------------------------------------------------------


def test_findings_are_told_and_the_first_that_stops_ends_the_push(tmp_path: Path) -> None:
    steps = preflight(tmp_path)
    steps._stop_at([WARN])
    with pytest.raises(EnvironmentCannot) as stopped:
        steps._stop_at([WARN, STOP, PreflightFinding("stop", "it is old")])
    assert (stopped.value.message, stopped.value.advice) == ("it is full (and 1 more)", "free some space")
    assert told(steps) == [
        "warn: it is busy", "stop: it is full  (free some space)", "stop: it is old", "warn: it is busy",
    ]  # fmt: skip
    assert [finding.level for finding in steps._push.result.findings] == ["warn", "stop", "stop", "warn"]
    assert steps._push.result.phase == "preflight"
    with pytest.raises(EnvironmentCannot) as alone:
        preflight(tmp_path)._stop_at([PreflightFinding("stop", "it is old")])
    assert (alone.value.message, alone.value.advice) == ("it is old", None)
    preflight(tmp_path, despite_findings=True)._stop_at([STOP])


# --- the way there ----------------------------------------------------------------------------------------


def test_the_line_is_measured_for_layers_that_take_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_preflight, "measured_rate", lambda node: 7e6)
    few = ChosenEngine(node(), "docker", image(), send_bytes=node_preflight.SMALL_BYTES - 1)
    many = dataclasses.replace(few, send_bytes=node_preflight.SMALL_BYTES)
    steps = preflight(tmp_path)
    assert steps._with_line_rate(few) is few
    assert steps._with_line_rate(many) == dataclasses.replace(many, line_rate=7e6)


def test_what_a_run_takes_is_told_with_why_its_engine_was_chosen(tmp_path: Path) -> None:
    steps = preflight(tmp_path)
    chosen = ChosenEngine(there("docker"), "docker", image(), send_bytes=60, line_rate=2.0)
    steps._say_what_it_takes(chosen, "it answers")
    result = steps._push.result
    assert (result.engine_reason, result.expected_seconds, result.to_send_bytes) == ("it answers", 30.0, 60)
    forecast = Forecast(what="the image cuda13", send_bytes=60, up_bytes_per_second=2.0, at_most=True)
    assert steps._forecast(chosen) == forecast
    assert told(steps)[0].startswith("ok: ")
    assert told(steps)[1:] == [f"docker (it answers): {forecast.sentence}"]
    steps._say_what_it_takes(chosen, "")
    assert told(steps)[-1] == f"docker: {forecast.sentence}"


def test_what_is_pulled_or_there_has_no_forecast(tmp_path: Path) -> None:
    steps = preflight(tmp_path, despite_findings=True)
    chosen = ChosenEngine(dataclasses.replace(there("docker"), engines={}), "none", None, python=P311)
    assert steps._forecast(chosen) is None
    steps._stop_at([STOP])
    steps._say_what_it_takes(chosen, "it was asked for")
    result = steps._push.result
    assert (result.engine_reason, result.expected_seconds) == ("it was asked for", None)
    assert told(steps)[-1].startswith("continuing despite findings: ")
    assert f"{P311.version} ({P311.path})" in told(steps)[-1]


def test_the_forecast_of_an_environment_is_that_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_preflight, "forecast", lambda planned, locked: (planned, locked))
    plan: Any = "a plan"
    locked: Any = "a lock"
    whole = ChosenEngine(node(), "venv", None, CUDA, P311, locked, plan)
    steps = preflight(tmp_path)
    assert steps._forecast(whole) == (plan, locked)
    assert steps._forecast(dataclasses.replace(whole, planned=None)) is None
    assert steps._forecast(dataclasses.replace(whole, locked=None)) is None


def test_models_that_wait_for_kernels_are_told_where_their_layer_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(node_preflight, "code_of_kernels", lambda labels: labels)
    monkeypatch.setattr(node_preflight, "who_waits", lambda *all_: given.append(all_) or "two models wait")
    steps = preflight(tmp_path)
    facts = image().facts
    facts.labels = {"mamba-ssm": ["9.0"]}
    chosen = ChosenEngine(there("docker"), "docker", image(facts=facts), send_bytes=60, line_rate=2.0)
    assert steps._who_waits(chosen) == "two models wait"
    assert given == [(steps._push.request.manifest, chosen.survey, ["mamba-ssm"], 30, 2.0)]
    for other in (
        dataclasses.replace(chosen, image=None),
        dataclasses.replace(chosen, image=image()),
        dataclasses.replace(chosen, send_bytes=0),
    ):
        assert steps._who_waits(other) is None
    steps._say_what_it_takes(chosen, "")
    assert told(steps)[-1] == "two models wait"


def test_kernels_that_are_missing_are_found_in_the_image_or_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_preflight, "cost_findings", lambda manifest, survey, missing, advice: [
        (manifest, survey, missing, advice)])  # fmt: skip
    monkeypatch.setattr(node_preflight, "missing_in_image", lambda labels, codes: (labels, codes))
    survey = there("docker")
    steps = preflight(tmp_path)
    manifest = steps._push.request.manifest
    locked: Any = SimpleNamespace(without=("flash-attn",))
    in_venv = ChosenEngine(survey, "venv", None, CUDA, P311, locked)
    advice = "give their wheels, compiled for the image's Python: --wheelhouse DIR"
    assert steps._missing_kernels(in_venv) == [(manifest, survey, ("flash-attn",), advice)]
    in_docker = ChosenEngine(survey, "docker", image())
    advice = "add a kernel layer: bench image add IMAGE LAYER"
    assert steps._missing_kernels(in_docker) == [(manifest, survey, ({}, ["9.0"]), advice)]
    assert steps._missing_kernels(ChosenEngine(survey, "docker", None)) == []
    assert preflight(tmp_path, on_cpu=True)._missing_kernels(in_venv) == []
    assert preflight(tmp_path, on_cpu=True)._missing_kernels(in_docker) == []


# --- environments -----------------------------------------------------------------------------------------


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """How locks were read; every lock is "a lock"."""
    read: list[tuple[object, ...]] = []
    monkeypatch.setattr(node_preflight, "read_locked", lambda *given: read.append(given) or "a lock")

    def folder_of_code(node: object, claim: PlaceClaim, blob: object) -> Any:
        assert (claim.place, blob) == ("/home/ubuntu/.bench", "a blob")
        return nullcontext("the code")

    monkeypatch.setattr(node_preflight, "folder_of_code", folder_of_code)
    return read


def choice(engine: str, variant: Any) -> Any:
    return SimpleNamespace(engine=engine, need=Need(engine, variant, False, None, send_bytes=60))


def test_an_environment_is_planned_by_the_python_that_will_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: list[tuple[object, ...]]
) -> None:
    monkeypatch.setattr(node_preflight, "installer_for", lambda push, chosen, code: SimpleNamespace(
        ask=lambda: ("a plan", chosen.python, code)))  # fmt: skip
    steps = preflight(tmp_path, wheelhouse=tmp_path / "wheels")
    survey = there("docker", pythons=(P311,))
    chosen = steps._chosen(survey, choice("venv", CUDA), None)
    plan: Any = ("a plan", P311, "the code")
    lock: Any = "a lock"
    assert chosen == ChosenEngine(survey, "venv", None, CUDA, P311, lock, plan)
    assert locked == [(tmp_path, CUDA, "3.11", tmp_path / "wheels")]


def can_have(monkeypatch: pytest.MonkeyPatch, steps: NodePreflight, sent: int, log: list[Any]) -> Any:
    """Let bench have a Python to bring, and send `sent` bytes of it; `log` gets the node's scripts."""
    python = StandalonePython("3.11", "ab" * 32, QUICKSTART)

    class Noting:
        def ask(self, script: str) -> CommandResult:
            log.append(script)
            return CommandResult(0, b"", b"")

    @contextmanager
    def claimed(node: Any, claim: PlaceClaim) -> Iterator[Any]:
        yield node

    def make(source: object, mirror: object) -> Any:
        log.append((source, mirror))
        return python

    monkeypatch.setattr(node_preflight, "claimed", claimed)
    monkeypatch.setattr(node_preflight.ship, "ship_python", lambda node, python, progress: sent)
    monkeypatch.setattr(node_preflight, "installer_for", lambda push, chosen, code: SimpleNamespace(
        ask=lambda: ("a plan", chosen.python, chosen.libraries)))  # fmt: skip
    monkeypatch.setattr(steps._push.shared.store, "python", make, raising=False)
    monkeypatch.setattr(steps._push, "node", Noting())
    return python


def needing_python(engine: str = "venv") -> Any:
    need = Need(engine, CPU, False, None, brings_python=True)
    return SimpleNamespace(engine=engine, need=need)


@pytest.mark.parametrize("pythons", [(), (NodePython("3.12", "/usr/bin/python3"),)])
def test_a_node_without_a_fitting_python_gets_one_and_its_plan_is_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: list[tuple[object, ...]], pythons: Any
) -> None:
    steps, log = preflight(tmp_path, mirror="http://mirror"), list[Any]()
    said: list[str] = []
    monkeypatch.setattr(steps._push, "say", said.append)
    python = can_have(monkeypatch, steps, 700, log)
    survey = there("docker", pythons=pythons, libc="glibc 2.39")
    chosen = steps._chosen(survey, needing_python(), None)
    folder = f"{survey.place}/pythons/{python.digest}"
    assert chosen.python == NodePython("3.11", f"{folder}/bin/python3.11")
    assert (chosen.brought, chosen.brought_bytes) == (python, 700)
    plan: Any = ("a plan", chosen.python, f"{folder}/lib/bundled")
    assert chosen.planned == plan
    assert locked == [(tmp_path, CPU, "3.11", None)]
    assert log == [(tmp_path, "http://mirror")]
    size = size_text(QUICKSTART.stat().st_size)
    has = "3.12" if pythons else "no Python 3"
    assert said == [f"the node has {has}: Python 3.11 of Debian's packages, {size}, is brought there"]


@pytest.mark.parametrize(("sent", "removed"), [(700, True), (0, False)])
def test_a_dry_run_leaves_no_python_that_it_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: object, sent: int, removed: bool
) -> None:
    steps, log = preflight(tmp_path, until="preflight"), list[Any]()
    python = can_have(monkeypatch, steps, sent, log)
    steps._chosen(there("docker", pythons=(), libc="glibc 2.39"), needing_python(), None)
    assert any(f"pythons/{python.digest}" in script for script in log[1:]) is removed


def test_a_python_that_cannot_be_brought_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: object
) -> None:
    steps = preflight(tmp_path)

    def cannot(*_: object) -> None:
        raise EnvironmentCannot("no mirror answers", advice="--mirror URL")

    monkeypatch.setattr(steps._push.shared.store, "python", cannot, raising=False)
    with pytest.raises(EnvironmentCannot, match="no mirror answers"):
        steps._chosen(there("docker", pythons=(), libc="glibc 2.39"), needing_python(), None)
    assert steps._push.result.findings == (PreflightFinding("stop", "no mirror answers", "--mirror URL"),)


def test_other_engines_and_nodes_without_a_python_have_no_plan(
    tmp_path: Path, locked: list[tuple[object, ...]]
) -> None:
    steps = preflight(tmp_path)
    survey, one = there("docker"), image()
    in_docker = ChosenEngine(survey, "docker", one, send_bytes=60)
    assert steps._chosen(survey, choice("docker", CUDA), one) == in_docker
    by_python = ChosenEngine(survey, "none", None, send_bytes=60)
    assert steps._chosen(survey, choice("none", None), None) == by_python
    of_no_variant = dataclasses.replace(by_python, engine="venv")
    assert steps._chosen(survey, choice("venv", None), None) == of_no_variant
    assert steps._chosen(survey, choice("venv", CUDA), None) == ChosenEngine(survey, "venv", None, CUDA)
    assert locked == []


@pytest.mark.parametrize(
    ("where", "advice", "what"),
    [("/tmp", "free some space", "/tmp: it is full"), (None, None, "it is full")],
)
def test_an_environment_that_cannot_be_planned_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: object, where: Any, advice: Any, what: str
) -> None:
    def cannot(*_: object) -> None:
        raise EnvironmentCannot("it is full", where=where, advice=advice)

    monkeypatch.setattr(node_preflight, "installer_for", cannot)
    survey = there("docker", pythons=(P311,))
    with pytest.raises(EnvironmentCannot) as stopped:
        preflight(tmp_path)._chosen(survey, choice("venv", CUDA), None)
    assert (stopped.value.message, stopped.value.advice) == (what, advice)
    goes_on = preflight(tmp_path, despite_findings=True)
    assert goes_on._chosen(survey, choice("venv", CUDA), None).planned is None
    assert goes_on._push.result.findings == (PreflightFinding("stop", what, advice or ""),)


def test_a_node_that_is_gone_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: object
) -> None:
    def gone(*_: object) -> None:
        raise Unreachable("no answer for 60 s")

    monkeypatch.setattr(node_preflight, "installer_for", gone)
    with pytest.raises(Unreachable):
        preflight(tmp_path, despite_findings=True)._chosen(
            there("docker", pythons=(P311,)), choice("venv", CUDA), None
        )


def test_an_installer_has_all_that_was_asked_for(tmp_path: Path) -> None:
    steps = preflight(tmp_path, index="http://index/simple", wheelhouse=tmp_path / "wheels")
    lock: Any = "a lock"
    whole = ChosenEngine(node(), "venv", None, CUDA, P311, lock)
    made = installer_for(steps._push, whole, "the code")
    assert (made.node, made.place, made.code) == (steps._push.node, whole.survey.place, "the code")
    assert (made.python, made.locked) == (P311.path, lock)
    assert (made.index, made.wheelhouse) == ("http://index/simple", tmp_path / "wheels")
    assert (made.say, made.progress) == (steps._push.say, steps._push.progress)
    for lacking in (dataclasses.replace(whole, python=None), dataclasses.replace(whole, locked=None)):
        with pytest.raises(EnvironmentCannot, match="has no Python for the locked wheels"):
            installer_for(steps._push, lacking, "the code")


# --- all steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "word", "own", "python"),
    [
        (None, '"$HOME/.bench"', None, "python3.12"),
        ("/scratch/my runs", '"/scratch/my runs"', "/opt/python", "/opt/python"),
    ],
)
def test_a_node_is_surveyed_and_judged_before_anything_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, word: str, own: Any, python: str
) -> None:
    asked: list[tuple[object, ...]] = []
    survey = there("docker")
    found = image()
    monkeypatch.setattr(node_preflight, "survey_node", lambda *given: asked.append(given) or survey)
    monkeypatch.setattr(node_preflight, "judge_machine", lambda survey, need: [WARN])
    monkeypatch.setattr(node_preflight, "measured_rate", lambda node: 7e6)
    monkeypatch.setattr(node_preflight, "cost_findings", lambda *given: [PreflightFinding("warn", "slower")])
    monkeypatch.setattr(node_preflight, "SMALL_BYTES", 1)
    steps = preflight(tmp_path, Store(found), place=place, python="python3.12", engine="docker")
    steps._push.part = dataclasses.replace(
        steps._push.part, host=dataclasses.replace(steps._push.part.host, python=own)
    )
    chosen = steps.choose()
    assert asked == [(steps._push.node, word, ("docker",), python)]
    assert chosen == ChosenEngine(survey, "docker", found, send_bytes=60, line_rate=7e6)
    result = steps._push.result
    assert (result.engine, result.image, result.phase) == ("docker", CONFIG, "preflight")
    assert [finding.what for finding in result.findings] == ["it is busy", "slower"]
    texts = told(steps)
    assert texts[0] == node_preflight.machine_text(survey)
    assert texts[1:3] == ["warn: it is busy", "warn: slower"]
    assert texts[3].startswith("ok: ") and texts[4].startswith("docker (docker 27.5.1 answers): ")


def identified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any, **options: Any) -> Any:
    """Return what is checked of the image of a push, whose manifest asks for one."""
    checked: list[tuple[Any, ...]] = []
    survey = there("docker")
    monkeypatch.setattr(node_preflight, "survey_node", lambda *given: survey)
    monkeypatch.setattr(node_preflight, "judge_machine", lambda survey, need: [])
    monkeypatch.setattr(node_preflight, "wanted_image", lambda manifest: CONFIG)
    monkeypatch.setattr(node_preflight, "check_identity", lambda *given: checked.append(given))
    preflight(tmp_path, Store(found), **{"engine": "docker", "on_cpu": True} | options).choose()
    (one,) = checked
    return one


def test_the_image_is_the_one_that_the_manifest_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = image()
    one = identified(tmp_path, monkeypatch, found)
    assert one == (found.facts.identity, CONFIG, "the image", "docker")
    assert identified(tmp_path, monkeypatch, found, image="mine.tar")[2] == "mine.tar"
    pulled = identified(tmp_path, monkeypatch, None, pull="registry/bench")
    assert pulled == (None, None, "the image", "docker")  # which the pull itself compares


def test_an_environment_that_the_manifest_asks_for_is_in_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_preflight, "wanted_environment", lambda manifest: "sha256:1")
    with pytest.raises(EnvironmentCannot) as refused:
        identified(tmp_path, monkeypatch, image())
    assert refused.value.message == (
        "the manifest asks for the environment sha256:1; --engine docker has none"
    )
    assert refused.value.advice == "--engine venv"
    in_venv = ChosenEngine(there("docker"), "venv", None)
    of_venv = EngineChoice(Need("venv", CPU, True, None), "")
    monkeypatch.setattr(NodePreflight, "_choose", lambda *given: (of_venv, None))
    monkeypatch.setattr(NodePreflight, "_chosen", lambda *given: in_venv)
    assert identified(tmp_path, monkeypatch, None, engine="venv")[3] == "venv"


def test_nothing_is_sent_of_an_engine_that_was_chosen_by_hand() -> None:
    assert ChosenEngine(node(), "none", None).send_bytes == 0
