"""The engine that follows from the findings of preflight: a table, with the reason that is shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bench.images.engines import EngineFacts
from bench.images.engines.preflight import OUT_BYTES, HostFacts
from bench.images.variants import find_variant
from bench.push.engine_choice import EngineCandidate, EngineChoice, choose_engine
from bench.push.node_findings import Need, PreflightFinding
from bench.push.node_survey import InstalledEngine, NodePython, Survey, read_survey
from tests.push.test_node_survey import ANSWERS

GIB = 2**30
CPU, CUDA = find_variant("cpu"), find_variant("cuda13")
NO_IMAGE = PreflightFinding("stop", "the image for no GPU is not on this machine", "bench image build cpu")
NO_LOCK = PreflightFinding("stop", "/here has no docker/cpu.lock", "name it: --source DIR")
ABSENT = InstalledEngine(None, "not installed")
DOCKER = InstalledEngine(EngineFacts("docker", "27.5.1", "cdi", "/var/lib/docker"), free_bytes=100 * GIB)
PODMAN = InstalledEngine(EngineFacts("podman", "4.9.3", "cdi", "/var/lib/containers"), free_bytes=100 * GIB)
APPTAINER = InstalledEngine(EngineFacts("apptainer", "1.3.4", "runtime", None))
DENIED = InstalledEngine(None, "permission denied while trying to connect to the Docker daemon socket")
P39, P311 = (NodePython(f"3.{minor}", f"/usr/bin/python3.{minor}") for minor in (9, 11))


def node(
    docker: InstalledEngine = ABSENT,
    podman: InstalledEngine = ABSENT,
    apptainer: InstalledEngine = ABSENT,
    **changes: Any,
) -> Survey:
    """A node without a GPU; without `docker` and the like, no engine is installed there."""
    usual: dict[str, Any] = {
        "pythons": (P311,),
        "libc": "glibc 2.36",
        "host": HostFacts(None, None, "x86_64"),
    }
    engines = {"docker": docker, "podman": podman, "apptainer": apptainer}
    return dataclasses.replace(
        read_survey(ANSWERS, 1763730000.5, ["docker"]), **{**usual, "engines": engines, **changes}
    )


def chosen(
    survey: Survey,
    *,
    image: PreflightFinding | None = None,
    lock: PreflightFinding | None = None,
    on_gpus: bool = False,
    image_bytes: int = GIB,
) -> EngineChoice:
    variant = CUDA if on_gpus else CPU
    containers = [
        EngineCandidate(
            Need(engine, variant, on_cpu=not on_gpus, gpus=None, engine_bytes=image_bytes),
            image if survey.engines[engine].facts else None,
        )
        for engine in ("docker", "podman", "apptainer")
    ]
    environment = EngineCandidate(Need("venv", variant, on_cpu=not on_gpus, gpus=None), lock)
    return choose_engine(survey, [*containers, environment])


NONE_INSTALLED = "docker, podman, apptainer: not installed"
NO_GPUS = EngineFacts("docker", "27.5.1", None, "/var/lib/docker")
GPU_NODE = {"host": HostFacts("580.95.05", "1.17.8", "x86_64")}


@pytest.mark.parametrize(
    ("survey", "options", "engine", "why"),
    [
        (node(DOCKER, PODMAN), {}, "docker", "docker 27.5.1 answers"),
        (node(podman=PODMAN), {}, "podman", "podman 4.9.3 answers; docker: not installed"),
        (node(apptainer=APPTAINER), {}, "apptainer",
         "apptainer 1.3.4 answers; docker, podman: not installed"),
        (node(), {}, "venv", NONE_INSTALLED),
        (node(DENIED, PODMAN), {}, "podman", f"podman 4.9.3 answers; docker: {DENIED.why}"),
        (node(DENIED), {}, "venv", f"podman, apptainer: not installed; docker: {DENIED.why}"),
        (node(DOCKER), {"image": NO_IMAGE}, "venv",
         "podman, apptainer: not installed; docker: the image for no GPU is not on this machine"),
        (node(DOCKER, PODMAN), {"image_bytes": 200 * GIB}, "venv",
         "apptainer: not installed; docker: /var/lib/docker: 100.0 GiB are free, the image needs 200.0 GiB; "
         "podman: /var/lib/containers: 100.0 GiB are free, the image needs 200.0 GiB"),
        (node(dataclasses.replace(DOCKER, facts=NO_GPUS), PODMAN, **GPU_NODE), {"on_gpus": True}, "podman",
         "podman 4.9.3 answers; docker 27.5.1 cannot pass GPUs to containers"),
        (node(DOCKER, pythons=(), noexec=True, libc="musl libc (x86_64)"), {"lock": NO_LOCK}, "docker",
         "docker 27.5.1 answers"),
    ],
)  # fmt: skip
def test_the_first_engine_that_can_run_is_chosen_and_the_reason_is_said(
    survey: Survey, options: dict[str, Any], engine: str, why: str
) -> None:
    choice = chosen(survey, **options)
    assert (choice.engine, choice.why) == (engine, why)
    assert not [finding for finding in choice.findings if finding.level == "stop"]


@pytest.mark.parametrize(
    ("survey", "options", "what", "advice"),
    [
        (node(pythons=()), {},
         "venv: it has no Python 3; the locked wheels of cpu are for Python 3.11",
         "apt-get install python3.11 on the node; or name its path: --python FILE"),
        (node(pythons=(P39,)), {}, "venv: it has 3.9; the locked wheels of cpu are for Python 3.11",
         "apt-get install python3.11 on the node; or name its path: --python FILE"),
        (node(libc="glibc 2.17"), {}, "venv: it has glibc 2.17; the locked wheels of cpu need 2.28 or newer",
         "use a node with Debian 10, Ubuntu 20.04, RHEL 8 or newer, or a container engine there"),
        (node(libc="musl libc (x86_64)"), {},
         "venv: its C library is musl libc (x86_64), and the locked wheels need glibc",
         "use a node with Debian, Ubuntu, RHEL or a relative of them, not Alpine"),
        (node(noexec=True), {},
         "venv: /home/ubuntu/.bench is on a file system mounted noexec, and no library can be loaded from it",
         "choose a folder on another file system: --place DIR"),
        (node(), {"lock": NO_LOCK}, "venv: /here has no docker/cpu.lock", "name it: --source DIR"),
    ],
)  # fmt: skip
def test_where_nothing_is_usable_every_reason_is_said_and_what_to_do(
    survey: Survey, options: dict[str, Any], what: str, advice: str
) -> None:
    (finding,) = chosen(survey, **options).findings
    assert finding == PreflightFinding(
        "stop", f"nothing there can run bench: {NONE_INSTALLED}; {what}", advice
    )


def test_an_engine_that_is_installed_is_what_to_repair_where_nothing_is_usable() -> None:
    (finding,) = chosen(node(DENIED, pythons=())).findings
    assert finding.advice == "usermod -aG docker ubuntu on the node, or log in as another user: USER@HOST"
    assert finding.what.endswith("the locked wheels of cpu are for Python 3.11")


def test_an_engine_that_is_passed_over_though_it_is_installed_is_a_warning() -> None:
    (warning,) = chosen(node(DENIED, PODMAN)).findings
    assert (warning.level, warning.what) == ("warn", f"docker: {DENIED.why}")
    assert warning.advice.startswith("usermod -aG docker ubuntu")
    assert chosen(node(podman=PODMAN)).findings == ()


def test_a_single_engine_is_taken_and_judged_as_it_is() -> None:
    need = Need("docker", None, on_cpu=True, gpus=None, place_bytes=OUT_BYTES)
    choice = choose_engine(node(DENIED, PODMAN), [EngineCandidate(need)])
    assert (choice.engine, choice.why) == ("docker", "")
    assert [finding.what for finding in choice.findings] == [f"docker: {DENIED.why}"]


def test_where_only_containers_would_do_and_none_is_installed_the_first_is_what_to_install() -> None:
    needs = [Need(engine, CPU, on_cpu=True, gpus=None) for engine in ("docker", "podman")]
    ((docker,), (podman,)) = (choose_engine(node(), [EngineCandidate(need)]).findings for need in needs)
    assert docker.advice != podman.advice
    (finding,) = choose_engine(node(), [EngineCandidate(need) for need in needs]).findings
    assert finding.advice == docker.advice
