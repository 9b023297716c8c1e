"""Push with --engine venv to a node without a container engine: installed by digest, run, and found again.

Two kinds of environments: the CPU's lock, with real wheels from an index on this machine, in which a manifest
is measured; and a lock of two tiny wheels, for what an index or a connection may do to an installation.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.base.names import CONTAINER_ENGINES
from bench.images.standalone_python import make_python
from bench.images.variants import find_variant
from bench.push import ship
from bench.push.install_environment import EnvironmentInstaller
from bench.push.locked_environment import read_locked
from bench.push.remote import Here
from bench.push.run_script import environment_folder
from bench.push.shared_place import PlaceClaim, claimed
from tests.conftest import shared_folder
from tests.e2e.images import Images
from tests.e2e.nodes import ssh_nodes
from tests.e2e.pushing import ROOT, Operator, inside, send
from tests.e2e.services import locked
from tests.environment.made_wheels import (
    Server,
    answer,
    lock_lines,
    make_index,
    make_wheel,
    serving,
    sha256_of,
)
from tests.patience import PATIENCE_SECONDS, until

pytestmark = pytest.mark.e2e
PIP_SETTINGS = "pip.conf"  # of the nodes, in the operator's folder


@dataclass(frozen=True)
class WithoutEngine(Operator):
    """An operator of nodes that have no container engine."""

    def pushing(self, *words: str | Path) -> list[str | Path]:
        return ["push", *words, "--device", "cpu", "--ssh-config", self.nodes.ssh_config]

    def environment(self) -> dict[str, str]:
        """The operator's own pip asks no index for the packages of these tests."""
        return super().environment() | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}

    def environments(self, address: str) -> list[Path]:
        return sorted((self.nodes.homes[address] / ".bench/environments").glob("[0-9a-f]*"))


def path_without_engines(folder: Path) -> str:
    """Make a folder with this machine's programs but container engines, and this Python; return it."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin", "/usr/sbin"):
        for program in Path(place).iterdir():
            link = folder / program.name
            if program.name not in CONTAINER_ENGINES and not link.is_symlink():
                link.symlink_to(program)
    for link in folder.glob("python3*"):
        link.unlink()
    (folder / "python3.11").symlink_to(Path(sys.executable).resolve())
    return str(folder)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutEngine]:
    folder = tmp_path_factory.mktemp("venv")
    (folder / PIP_SETTINGS).touch()
    pip = {"PIP_CONFIG_FILE": str(folder / PIP_SETTINGS)}
    node = {"PATH": path_without_engines(folder / "programs"), **pip}
    with ssh_nodes(folder / "n", 2, node) as nodes:
        yield WithoutEngine(folder, nodes)


# --- the CPU's lock --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(images: Images) -> Iterator[Server]:
    """An index on this machine that has every wheel of the CPU's lock."""
    folder = shared_folder() / "cpu-index"
    with locked(shared_folder() / "cpu-index.lock"):
        if not (folder / "simple").exists():
            make_index(folder, *images.wheels.values())
    with serving(folder) as server:
        yield server


def test_a_manifest_is_measured_in_an_environment_that_the_node_installs(
    operator: WithoutEngine, index: Server
) -> None:
    """No engine is named: the node has none, so the environment is chosen, and said to be.

    The password in the node's configuration of pip is in no output, bundle, ledger, log or other file.
    """
    address, settings = operator.nodes.addresses[0], operator.folder / PIP_SETTINGS
    words = operator.pushing(operator.manifest(), address, "--keep", "--json")
    settings.write_text(f"[global]\nindex-url = {index.simple.replace('//', '//me:s3cret@')}\n")
    try:
        done = operator.bench(*words)
        assert "s3cret" not in done.stdout + done.stderr
        assert [*files_with(b"s3cret", operator.folder)] == [settings]
    finally:
        settings.write_text("")
    chosen = "venv (docker, podman, apptainer: not installed): the environment cpu with Python 3.11"
    assert chosen in done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["outcome"], node["engine"], node["image"]) == ("done", "venv", None)
    bundle, digest = Path(node["bundle"]), node["environment"]
    assert [path.name for path in operator.environments(address)] == [digest.removeprefix("sha256:")]
    key = operator.folder / "config/bench/id_ed25519.pub"
    said = operator.bench("verify", bundle, "--trust", key).stdout
    assert "level      operator" in said
    assert f"cpu {digest}, Python " in said
    described = inside(bundle, "results.json")["node"]["environment"]
    assert described["variant"] == "cpu"
    assert "no new privileges" in described["confinement"]
    assert f"sha256:{sha256_of(ROOT / 'docker/cpu.lock')}" == described["lock"]
    assert digest in operator.bench("compare", bundle, "--json").stdout

    # The manifest may ask for this environment: it is found, nothing is downloaded or sent but the manifest.
    asked = len(index.requests)
    own = operator.manifest("own", environment=digest)
    (again,) = operator.push(own, address, "--keep")["nodes"]
    assert (again["outcome"], again["environment"], again["sent_bytes"]) == ("done", digest, 0)
    assert len(index.requests) == asked

    other = operator.manifest("other", environment="sha256:" + "0" * 64)
    (refused,) = operator.push(other, address, "--keep", code=3)["nodes"]
    assert f"the environment is {digest}, the manifest asks for sha256:000" in refused["error"]["message"]
    operator.bench("clean", address)


def files_with(secret: bytes, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that hold a text; wheels and what is made of them are not read."""
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("environments", "blobs")]
        for name in files:
            file = Path(path, name)
            if file.is_file() and not file.is_symlink() and secret in file.read_bytes():
                yield file


# --- a lock of two tiny wheels --------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiny:
    """A made-up repository whose CPU lock has two wheels, and the wheels."""

    source: Path
    wheels: tuple[Path, Path]

    def index(self, folder: Path, *found: Path) -> Path:
        return make_index(folder, *found or self.wheels)


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """Each test has a lock of its own, so that no environment of another test is found."""
    version = f"1.{abs(hash(tmp_path)) % 10**9}"
    a = make_wheel(tmp_path / "wheels", "alpha", version)
    b = make_wheel(tmp_path / "wheels", "beta", version, files={"beta/data.bin": bytes(range(256)) * 20_000})
    (tmp_path / "source/docker").mkdir(parents=True)
    (tmp_path / "source/docker/cpu.lock").write_text(lock_lines(a, b))
    return Tiny(tmp_path / "source", (a, b))


def install(operator: WithoutEngine, tiny: Tiny, address: str, *words: str | Path, code: int = 0) -> Any:
    """Push with --no-run, which installs the environment; return the node's entry and the text for people."""
    options = ("--no-run", "--keep", "--engine", "venv", "--source", tiny.source, "--json")
    done = operator.bench(*operator.pushing(operator.manifest(), address, *options, *words), code=code)
    return json.loads(done.stdout)["nodes"][0], done.stderr


def test_what_the_index_lacks_is_sent_by_the_operator(
    operator: WithoutEngine, tiny: Tiny, tmp_path: Path
) -> None:
    address = operator.nodes.addresses[1]
    with serving(tiny.index(tmp_path / "index", tiny.wheels[0])) as server:
        node, said = install(
            operator, tiny, address, "--index", server.simple, "--wheelhouse", tmp_path / "wheels"
        )
        assert node["outcome"] == "ready"
        assert node["sent_bytes"] >= tiny.wheels[1].stat().st_size
        assert "1 of 2 wheels" in said
        assert "beta: the index does not have it" in said
        assert "Mbit/s" in said
        again, _ = install(operator, tiny, address, "--index", server.simple)
        assert (again["outcome"], again["sent_bytes"]) == ("unchanged", 0)
        assert again["environment"] == node["environment"]


def test_a_wheel_that_nobody_has_is_named_with_what_to_do(
    operator: WithoutEngine, tiny: Tiny, tmp_path: Path
) -> None:
    address = operator.nodes.addresses[1]
    with serving(tiny.index(tmp_path / "index", tiny.wheels[0])) as server:
        node, _ = install(operator, tiny, address, "--index", server.simple, code=3)
    assert "neither the node nor this machine can get beta" in node["error"]["message"]
    assert "--wheelhouse DIR" in node["error"]["advice"]


def test_an_index_that_lies_is_refused_and_the_operators_wheel_is_taken(
    operator: WithoutEngine, tiny: Tiny, tmp_path: Path
) -> None:
    address, a = operator.nodes.addresses[1], tiny.wheels[0]

    def lie(request: SimpleHTTPRequestHandler) -> bool:
        return request.path.endswith(a.name) and answer(request, b"another wheel under the name")

    before = operator.environments(address)
    with serving(tiny.index(tmp_path / "index"), lie) as server:
        node, _ = install(operator, tiny, address, "--index", server.simple, code=3)
        assert "neither the node nor this machine can get alpha" in node["error"]["message"]
        assert operator.environments(address) == before
        node, said = install(
            operator, tiny, address, "--index", server.simple, "--wheelhouse", tmp_path / "wheels"
        )
    assert "refused: alpha" in said
    assert "not the lock's" in said
    assert node["outcome"] == "ready"
    assert len(operator.environments(address)) == len(before) + 1


def test_an_interrupted_installation_is_not_taken_for_whole(
    operator: WithoutEngine, tiny: Tiny, tmp_path: Path
) -> None:
    address, hold = operator.nodes.addresses[1], threading.Event()
    asked, before = threading.Event(), operator.environments(address)

    def wait(request: SimpleHTTPRequestHandler) -> bool:
        if request.path.endswith(tiny.wheels[0].name) and not hold.is_set():
            asked.set()
            hold.wait(PATIENCE_SECONDS)
        return False

    with serving(tiny.index(tmp_path / "index"), wait) as server:
        words = operator.pushing(
            operator.manifest(), address, "--no-run", "--keep", "--engine", "venv", "--source", tiny.source,
            "--index", server.simple,
        )  # fmt: skip
        pushing = subprocess.Popen(
            operator.command(*words), cwd=operator.folder, env=operator.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert asked.wait(PATIENCE_SECONDS)
        send(signal.SIGKILL, installers(operator.nodes.homes[address]))
        _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
        assert pushing.returncode == 3, err
        hold.set()
        assert operator.environments(address) == before
        node, _ = install(operator, tiny, address, "--index", server.simple)
    assert node["outcome"] == "ready"


def installers(home: Path) -> list[int]:
    """Return the processes of bench's program on a node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = f"PYTHONPATH={home}/.bench/".encode() in path.read_bytes()
        except OSError:
            continue
        if mine:
            found.append(int(path.parent.name))
    return found


def test_two_pushes_at_once_make_one_environment(operator: WithoutEngine, tiny: Tiny, tmp_path: Path) -> None:
    address = operator.nodes.addresses[1]
    before = operator.environments(address)
    with serving(tiny.index(tmp_path / "index", tiny.wheels[0])) as server:
        words = operator.pushing(
            operator.manifest(), address, "--no-run", "--keep", "--engine", "venv", "--source", tiny.source,
            "--index", server.simple, "--wheelhouse", tmp_path / "wheels", "--json",
        )  # fmt: skip
        pushes = [
            subprocess.Popen(
                operator.command(*words), cwd=operator.folder, env=operator.environment(),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        answers = [push.communicate(timeout=PATIENCE_SECONDS) for push in pushes]
    assert [push.returncode for push in pushes] == [0, 0], answers
    digests = {json.loads(out)["nodes"][0]["environment"] for out, _ in answers}
    assert len(digests) == 1
    assert len(operator.environments(address)) == len(before) + 1


@pytest.mark.parametrize("way", ["index", "proxy"])
def test_a_password_of_the_nodes_pip_opens_its_index_and_stays_there(
    operator: WithoutEngine, tiny: Tiny, tmp_path: Path, way: str
) -> None:
    """The password stays in pip's configuration: no other file of either side has it, and no output."""
    address, settings = operator.nodes.addresses[1], operator.folder / PIP_SETTINGS
    login = base64.b64encode(b"me:s3cret").decode()
    header = {"index": "Authorization", "proxy": "Proxy-Authorization"}[way]

    def guard(request: SimpleHTTPRequestHandler) -> bool:
        request.path = urlsplit(request.path).path  # a proxy is asked for whole URLs
        if request.headers.get(header) == f"Basic {login}":
            return False
        request.send_error(401)
        return True

    with serving(tiny.index(tmp_path / "index"), guard) as server:
        opened = server.url.replace("//", "//me:s3cret@")
        lines = {
            "index": f"index-url = {opened}/simple",
            "proxy": f"index-url = http://index.invalid/simple\nproxy = {opened}",
        }
        settings.write_text(f"[global]\n{lines[way]}\n")
        try:
            found, said = install(operator, tiny, address)
        finally:
            settings.write_text("")
        assert any(request.path.endswith(".whl") for request in server.requests)
    assert found["outcome"] == "ready"
    told = json.dumps(found) + said
    for path in operator.folder.rglob("*"):
        told += path.read_bytes().decode("latin-1") if path.is_file() and not path.is_symlink() else ""
    assert "s3cret" not in told and login not in told


def test_a_login_in_the_option_is_refused_and_not_shown(operator: WithoutEngine) -> None:
    address = operator.nodes.addresses[1]
    words = operator.pushing(operator.manifest(), address, "--index", "http://me:s3cret@127.0.0.1/simple")
    refused = operator.bench(*words, code=2).stderr
    assert "has a login" in refused and "s3cret" not in refused


def test_a_python_of_the_locked_debian_packages_installs_and_runs_an_environment(
    tiny: Tiny, tmp_path: Path
) -> None:
    """The packages come from the mirrors of this machine's apt. Its variables do not reach the program."""
    with locked(shared_folder() / "pythons.lock"):
        python = make_python(ROOT, "", shared_folder() / "pythons")
    place = tmp_path / "my place"
    folder, libraries = Path(python.folder(str(place))), ship.libraries_of(python, str(place))
    with (
        claimed(Here(), PlaceClaim(str(place), "1")) as node,
        serving(tiny.index(tmp_path / "index")) as server,
    ):
        ship.ship_python(node, python, lambda done, total: None)
        installer = EnvironmentInstaller(
            node, str(place), str(ROOT), f"{folder}/bin/python{python.version}",
            read_locked(tiny.source, find_variant("cpu"), python.version, None), server.simple, None, print,
            lambda done, total: None, libraries,
        )  # fmt: skip
        made = installer.install(installer.ask(), node)
    program = f"{environment_folder(str(place), made.digest)}/bin/python"
    tell = "import alpha, beta, ctypes, sqlite3, ssl, sys, sysconfig as s; "
    tell += "print(sys.base_prefix, s.get_paths('posix_prefix')['include'], sep='\\n')"
    done = subprocess.run(
        [program, "-I", "-B", "-c", tell], env={"LD_LIBRARY_PATH": libraries}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prefix, include = done.stdout.splitlines()
    assert Path(prefix) == folder
    assert (Path(include) / "Python.h").exists()  # with which Triton compiles
    headers = subprocess.run(
        ["cpp", "-I", include, "-include", "Python.h", "-"], input=b"", capture_output=True, check=False
    )
    assert headers.returncode == 0, headers.stderr[:300]


def test_a_node_without_a_fitting_python_is_told_what_to_install(operator: WithoutEngine, tiny: Tiny) -> None:
    address = operator.nodes.addresses[1]
    node, _ = install(operator, tiny, address, "--python", "/bin/false", code=3)
    assert "it has no Python 3; the locked wheels of cpu are for Python 3.11" in node["error"]["message"]
    assert "--python FILE" in node["error"]["advice"]
    until(lambda: not installers(operator.nodes.homes[address]), "the end of the installers")
