"""The real CPU image is run with restrictions by Docker and Podman; its bundle verifies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.base.names import GIB
from bench.images.container import Container
from tests.documented_commands import printed
from tests.e2e.images import ROOT, Images
from tests.e2e.pushing import MOODY, TINY, UNHURRIED, inside
from tests.e2e.reader import Reader
from tests.e2e.services import SYSTEM, docker_engine, podman_store
from tests.images.made_up_images import make_image
from tests.images.stand_in_kernels import SITE, compiled_wheel, make_plain
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

# The quickstart's settings, each measured for a moment: what the image contains does not depend on precision.
QUICKSTART = json.loads((ROOT / "manifests/quickstart.json").read_text()) | {"timing": TINY["timing"]}
ENGINES = ["docker", "podman"]
MIB = 2**20


@dataclass(frozen=True)
class Machine:
    """A machine with a working folder and the address of its engine."""

    folder: Path
    docker: str
    podman: Mapping[str, str] = field(default_factory=dict)  # environment variables of its Podman

    def bench(self, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        done = subprocess.run(command, **self.how(), capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "bench", *map(str, arguments)]

    def how(self) -> dict[str, Any]:
        environment = {"PATH": SYSTEM, "DOCKER_HOST": self.docker, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        return {"cwd": self.folder, "env": os.environ | environment | self.podman}

    def manifest(self, **changes: Any) -> Path:
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(QUICKSTART | changes))
        return path


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    # The path is short, for a socket; the folder is removed at once, because it contains gigabytes.
    with tempfile.TemporaryDirectory(prefix="bench-e2e-") as name:
        engine = Path(name) / "docker"
        engine.mkdir()
        containers = Path(name) / "podman"
        containers.mkdir()
        with docker_engine(engine) as address, podman_store(containers) as podman:
            yield Machine(Path(name), address, podman)


@pytest.fixture(scope="module")
def image(machine: Machine, images: Images) -> dict[str, Any]:
    """Build the image and load it as bench:cpu into both engines."""
    found = images.one
    (machine.folder / "one.tar").hardlink_to(images.folder / "one.tar")
    with ThreadPoolExecutor() as pool:  # much of a load is waiting for the disk
        load = partial(machine.bench, "image", "load", machine.folder / "one.tar", "--engine")
        list(pool.map(load, ENGINES))
    return found


@pytest.fixture(scope="module")
def reader(machine: Machine, image: dict[str, Any]) -> Reader:
    """A reader of docs/images.md, who has built the image and has it in both engines."""
    folder = machine.folder / "reader"
    (folder / "out/images").mkdir(parents=True)
    (folder / "manifests").mkdir()
    (folder / "out/images/bench-cpu.tar").hardlink_to(machine.folder / "one.tar")
    return Reader(folder, {"DOCKER_HOST": machine.docker, **machine.podman})


def identity(machine: Machine, *arguments: str | Path) -> str:
    return machine.bench("image", "id", *arguments).stdout.strip()


def test_identity_is_the_same_in_every_engine(
    machine: Machine, reader: Reader, image: dict[str, Any]
) -> None:
    """A gigabyte is hashed for each answer that is read from the archive or from an engine."""
    archive = machine.folder / "one.tar"
    assert image["config"] in reader.type(printed("bench image id out/images/bench-cpu.tar"))
    assert image["config"] in reader.type(printed("bench image id bench:cpu --engine docker"))
    sbom = machine.bench("image", "sbom", archive).stdout
    for engine in ENGINES:
        if engine != "docker":
            assert identity(machine, "bench:cpu", "--engine", engine) == image["config"]
        # The list of contents is read from the image as the engine saves it, after all of that is hashed.
        assert machine.bench("image", "sbom", "bench:cpu", "--engine", engine).stdout == sbom


@pytest.mark.parametrize("engine", ENGINES)
def test_identity_is_the_same_after_save_and_load(machine: Machine, tmp_path: Path, engine: str) -> None:
    """A small image is saved, because every byte is compressed."""
    archive, saved = make_image(tmp_path, [{"a": b"a" * MIB}, {"b": b"b" * MIB}]), tmp_path / "saved.tar"
    expected = identity(machine, archive)
    machine.bench("image", "load", archive, "--engine", engine)
    machine.bench("image", "save", "bench:test", "--engine", engine, "-o", saved)
    assert identity(machine, saved) == expected
    assert saved.stat().st_size < 0.5 * archive.stat().st_size
    remove = [engine, "image", "rm", "bench:test"]
    subprocess.run(remove, **machine.how(), check=True, stdout=subprocess.DEVNULL)
    machine.bench("image", "load", saved, "--engine", engine)
    assert identity(machine, "bench:test", "--engine", engine) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_with_a_kernel_layer_is_one_image_in_an_engine(
    machine: Machine, tmp_path: Path, engine: str
) -> None:
    plain, layer, both = make_plain(tmp_path), tmp_path / "kernels.tar", tmp_path / "both.tar"
    wheels = compiled_wheel(tmp_path / "wheels", "mamba-ssm", "9.0").parent
    machine.bench(
        "image", "kernels", "cuda13", "--source", ROOT, "--wheels", wheels, "-o", layer, "--cache", tmp_path
    )
    machine.bench("image", "add", plain, layer, "-o", both)
    for archive in (plain, both):
        machine.bench("image", "load", archive, "--engine", engine)
    assert identity(machine, "bench:cuda13-kernels", "--engine", engine) == identity(machine, both)
    assert identity(machine, "bench:test", "--engine", engine) == identity(machine, plain)

    def run(*words: str) -> str:
        done = subprocess.run([engine, *words], **machine.how(), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    container = run("create", "bench:cuda13-kernels", "nothing")
    run("cp", f"{container}:/{SITE}", str(tmp_path / "site"))
    run("rm", container)
    assert {path.name for path in (tmp_path / "site").iterdir()} >= {"mamba_ssm", "torch"}


PROBE = """
import json, os, socket, subprocess
def can(act, *arguments):
    try:
        act(*arguments)
        return True
    except OSError as error:
        return error.strerror
def connect():
    socket.create_connection(("192.0.2.1", 80), 2)
def limit(*places):
    return next(open(place).read().strip() for place in places if os.path.exists(place))
def write(folder):
    open(folder + "/probe", "w").write("#!/bin/sh\\n")
    os.chmod(folder + "/probe", 0o755)
def execute(folder):
    write(folder)
    subprocess.run([folder + "/probe"], check=True)
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
print(json.dumps({
    "ids": [os.getuid(), os.getgid(), os.getgroups()],
    "capabilities": sorted({status[f"Cap{name}"].strip() for name in ("Eff", "Prm", "Bnd", "Inh", "Amb")}),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "write": {place: can(write, place) for place in "/ /usr /etc /in /run /var/tmp /tmp /cache /out".split()},
    "execute": {place: can(execute, place) for place in ("/tmp", "/cache", "/dev/shm")},
    "network": can(connect),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "docker_socket": os.path.exists("/var/run/docker.sock") or os.path.exists("/run/docker.sock"),
    "pids": limit("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
}))
"""


def in_docker(machine: Machine, container: Container) -> bytes:
    import docker

    from bench.images.engines.docker import options

    client = docker.DockerClient(base_url=machine.docker)
    # Docker's SDK reads what a container printed from its log, which bench turns off.
    logged = options(container) | {"log_config": docker.types.LogConfig(type="json-file")}
    said: bytes = client.containers.run(**logged, entrypoint=["python3"], remove=True)
    return said


def in_podman(machine: Machine, container: Container) -> bytes:
    from bench.images.engines.podman import argv

    command = argv(container)
    command.insert(2, "--entrypoint=python3")
    return subprocess.run(command, **machine.how(), check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("probe", [in_docker, in_podman], ids=ENGINES)
def test_the_container_has_no_other_rights_than_measuring(
    machine: Machine, image: dict[str, Any], probe: Callable[[Machine, Container], bytes]
) -> None:
    out = machine.folder / "probe"
    out.mkdir()
    os.chown(out, 65534, 65534)
    container = Container("bench:cpu", ("-c", PROBE), machine.manifest(), out, memory_bytes=2 * GIB)
    text = probe(machine, container)
    shutil.rmtree(out)
    found = json.loads(text)
    assert found["ids"] == [65534, 65534, [65534]] or found["ids"] == [65534, 65534, []]
    assert found["capabilities"] == ["0" * 16]
    assert found["no_new_privileges"] == "1"
    assert {place for place, answer in found["write"].items() if answer is True} == {"/tmp", "/cache", "/out"}
    assert {place for place, answer in found["execute"].items() if answer is True} == {"/cache"}
    assert found["network"] == "Network is unreachable"
    assert found["interfaces"] == ["lo"]
    assert found["docker_socket"] is False
    assert found["pids"] == "8192"


def test_quickstart_runs_hardened_and_its_bundle_is_verified(
    machine: Machine, reader: Reader, image: dict[str, Any]
) -> None:
    first, *others = QUICKSTART["models"]
    plain = [{"name": name, "methods": ["naive", ["checkpointing"]]} for name in others]  # compiling is slow
    manifest = machine.manifest(image=image["config"], models=[first, *plain])
    shutil.copy(manifest, reader.folder / "manifests/quickstart.json")
    reader.type(printed("bench run manifests/quickstart.json --engine docker"))
    (bundle,) = reader.folder.glob("out/*.tar")
    said = machine.bench("verify", bundle).stdout
    assert f"image      cpu {image['config']}" in said
    with tarfile.open(bundle) as archive:
        results, environment, sbom = (
            json.load(archive.extractfile(name))  # type: ignore[arg-type]
            for name in ("results.json", "env.json", "sbom.cdx.json")
        )
    assert environment["node"]["image"]["diff_ids"] == image["diff_ids"]
    assert environment["node"]["image"]["lock"] == image["labels"]["bench.lock"]
    assert {trial["outcome"] for trial in results["trials"]} == {"measured"}, results["trials"]
    assert any(trial["setting"] == ["compile-blocks"] for trial in results["trials"])
    assert {c["name"] for c in sbom["components"]} >= {"torch", "transformers", "bench-appliance", "libc6"}


def short_check(folder: Path) -> Path:
    path = folder / "check.json"
    check = {"schema": "bench/node-check/v1", "level": "quick", "levels": {"quick": UNHURRIED}, "skip": MOODY}
    path.write_text(json.dumps(check))
    return path


def test_a_node_is_checked_in_the_image(machine: Machine, reader: Reader, image: dict[str, Any]) -> None:
    """The reader's check takes seconds, and processors stand in for GPUs."""
    short = f'bench() {{ command bench "$@" {short_check(machine.folder)} --device cpu --out checked; }}'
    reader.type(f"{short}; {printed('bench check --engine docker')}")
    (bundle,) = reader.folder.glob("checked/*.tar")
    found = {f["check"]: f["verdict"] for f in inside(bundle, "results.json")["findings"] if f["counts"]}
    assert found == {"agreement": "pass"}
    assert f"image      cpu {image['config']}" in machine.bench("verify", bundle).stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_without_a_driver_checks_nothing(
    machine: Machine, image: dict[str, Any], engine: str
) -> None:
    words = ("check", short_check(machine.folder), "--engine", engine, "--image", "bench:cpu", "--nagios")
    line = machine.bench(*words, "--out", machine.folder / f"checked-by-{engine}", code=3).stdout
    assert line.startswith("BENCH UNKNOWN - ") and len(line.splitlines()) == 1


def test_podman_runs_it_too_and_its_bundle_is_verified(
    machine: Machine, reader: Reader, image: dict[str, Any]
) -> None:
    """The image of the CPU has the name of the one for GPUs here."""
    manifest = machine.manifest(image=image["config"], models=["tiny-vit"], methods=[["compile-blocks"]])
    shutil.copy(manifest, reader.folder / "manifests/quickstart.json")
    subprocess.run(["podman", "tag", "bench:cpu", "bench:cuda13"], **machine.how(), check=True)
    before = set(reader.folder.glob("out/*.tar"))
    reader.type(printed("bench run manifests/quickstart.json --engine podman --image bench:cuda13"))
    (bundle,) = set(reader.folder.glob("out/*.tar")) - before
    assert f"image      cpu {image['config']}" in machine.bench("verify", bundle).stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_leaves_a_valid_partial_bundle(machine: Machine, image: dict[str, Any], engine: str) -> None:
    out = machine.folder / f"interrupted-{engine}"
    command = machine.command(
        "run", machine.manifest(), "--engine", engine, "--image", "bench:cpu", "--out", out
    )
    process = subprocess.Popen(
        command, **machine.how(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not any('"trial"' in p.read_text() for p in out.glob("*/journal.jsonl")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 5, said
    (bundle,) = out.glob("*.tar")
    assert "incomplete" in machine.bench("verify", bundle).stdout


def test_another_image_than_the_manifest_s_starts_nothing(machine: Machine, image: dict[str, Any]) -> None:
    manifest = machine.manifest(image="sha256:" + "0" * 64)
    out = machine.folder / "refused"
    said = machine.bench(
        "run", manifest, "--engine", "docker", "--image", "bench:cpu", "--out", out, code=3
    ).stderr
    assert f"bench:cpu is {image['config']}, the manifest asks for sha256:0000" in said
    assert not out.exists()
    assert "the manifest asks for the image" in machine.bench("run", manifest, "--out", out, code=3).stderr


def test_a_missing_image_and_an_engine_that_does_not_answer_are_reported(machine: Machine) -> None:
    manifest = machine.manifest()
    said = machine.bench("run", manifest, "--engine", "docker", "--image", "bench:nothing", code=3).stderr
    assert "docker has no image bench:nothing" in said
    nowhere = Machine(machine.folder, f"unix://{machine.folder}/no.sock")
    assert "does not answer" in nowhere.bench("run", manifest, "--engine", "docker", code=3).stderr
