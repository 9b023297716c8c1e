"""Docker: through its API on this machine; as a command line for machines that are reached by SSH."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from bench.base.errors import EnvironmentCannot
from bench.base.signals import answered_by
from bench.images.archive import Identity, read_facts
from bench.images.container import OUT, RDMA, Container
from bench.images.engines import EngineFacts, Gpus, Inspected

if TYPE_CHECKING:
    from docker import DockerClient

_STOP_SECONDS = 30  # a run that is told to end packs what it has
_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))


def argv(container: Container, gpus: Gpus | None = "cdi") -> list[str]:
    """`docker run` for this container; Podman understands the same but for the GPUs."""
    c = container
    user = "{}:{}".format(*c.user)
    command = ["docker", "run", "--rm", "--init", "--read-only", f"--user={user}", "--cap-drop=ALL"]
    command += [
        "--security-opt=no-new-privileges",
        f"--network={'host' if c.network else 'none'}",
        "--ipc=private",
    ]
    # What such a card reads and writes stays where it is.
    command += [f"--device={RDMA}", "--ulimit=memlock=-1"] if c.rdma else []
    command += [f"--pids-limit={c.pids}", f"--memory={c.memory_bytes}", f"--memory-swap={c.memory_bytes}"]
    command += [f"--shm-size={c.shared_bytes}", *(f"--tmpfs={place}:{how}" for place, how in c.tmpfs.items())]
    command += [f"--mount=type=bind,source={file},target={at},readonly" for at, file in c.inputs.items()]
    command += [f"--mount=type=bind,source={c.out},target={OUT}"]
    command += [f"--env={name}={value}" for name, value in c.settings.items()]
    command += [f"--name={c.name}"] if c.name else []
    if c.gpus:
        command += ["--gpus=all"] if gpus == "runtime" else ["--device=nvidia.com/gpu=all"]
    return [*command, c.image, *c.command]


def options(container: Container, gpus: Gpus | None = "cdi") -> dict[str, Any]:
    """The same, as the API takes it."""
    from docker.types import DeviceRequest, Mount, Ulimit

    c = container
    requests = []
    if c.gpus and gpus == "runtime":
        requests = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    elif c.gpus:
        requests = [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]
    return {
        "image": c.image,
        "name": c.name,
        "command": list(c.command),
        "init": True,
        "read_only": True,
        "user": "{}:{}".format(*c.user),
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "network_mode": "host" if c.network else "none",
        "ipc_mode": "private",
        "ulimits": [Ulimit(name="memlock", soft=-1, hard=-1)] if c.rdma else [],
        "devices": [str(RDMA)] if c.rdma else [],
        "pids_limit": c.pids,
        "mem_limit": c.memory_bytes,
        "memswap_limit": c.memory_bytes,
        "shm_size": c.shared_bytes,
        "tmpfs": dict(c.tmpfs),
        "mounts": [
            *(Mount(at, str(file), type="bind", read_only=True) for at, file in c.inputs.items()),
            Mount(OUT, str(c.out), type="bind"),
        ],
        "environment": dict(c.settings),
        "device_requests": requests,
    }


class Docker:
    name = "docker"

    def facts(self) -> EngineFacts:
        with self._client() as client:
            info = client.info()
        if why := unfit(info):
            raise EnvironmentCannot(why, advice="--engine podman, which needs no root either")
        return EngineFacts("docker", info["ServerVersion"], gpus_of(info), info.get("DockerRootDir"))

    def load(self, archive: Path) -> None:
        with self._client() as client, archive.open("rb") as file:
            client.images.load(file)

    def save(self, image: str, out: Path) -> None:
        with self._client() as client, out.open("wb") as file:
            for piece in _found(client, image).save(named=True):
                file.write(piece)

    def inspect(self, image: str) -> Inspected:
        with self._client() as client:
            found = _found(client, image)
            labels = found.attrs["Config"].get("Labels") or {}
            if _ids_are_of_configurations(client.info()):
                identity = Identity(str(found.id), tuple(found.attrs["RootFS"]["Layers"]))
            else:  # a store that names images by their manifest: the configuration is in the image alone
                identity = read_facts(cast(Any, _ArchiveStream(found.save(named=False))), image).identity
            return Inspected(identity, labels, str(found.id))

    def run(self, container: Container) -> int:
        with self._client() as client, answered_by(signal.default_int_handler):
            made = client.containers.create(**options(container, gpus_of(client.info())))
            try:
                output = made.attach(stream=True, demux=True, stdout=True, stderr=True, logs=True)
                made.start()
                self._follow(made, output)
                return int(made.wait()["StatusCode"])
            finally:
                made.remove(force=True)

    def _follow(self, made: Any, output: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        """Passes its output on; what ends us is a polite end there, whose output still comes."""
        try:
            _pass_on(output)
        except KeyboardInterrupt:
            made.stop(timeout=_STOP_SECONDS)
            with suppress(KeyboardInterrupt):
                _pass_on(output)

    @contextmanager
    def _client(self) -> Iterator[DockerClient]:
        try:
            import docker
            from docker.errors import DockerException
        except ImportError:
            raise EnvironmentCannot(
                "the Docker SDK is not installed", advice="pip install 'bench[engines]'"
            ) from None
        try:
            client = docker.from_env(timeout=3600)
            client.ping()
        except DockerException as error:
            raise EnvironmentCannot(
                f"Docker's engine does not answer: {_short(error)}",
                advice="start it, join the group docker, or set DOCKER_HOST",
            ) from None
        try:
            yield client
        except DockerException as error:
            raise EnvironmentCannot(f"docker: {_short(error)}") from None
        finally:
            client.close()


def _found(client: DockerClient, image: str) -> Any:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(image)
    except ImageNotFound:
        raise EnvironmentCannot(
            f"docker has no image {image}", advice="bench image load FILE, or bench image build --load docker"
        ) from None


def unfit(info: Mapping[str, Any]) -> str | None:
    """Why this Docker cannot hold a run."""
    if not any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        return None
    return "Docker runs rootless here: whoever is not root inside cannot write the results"


def gpus_of(info: Mapping[str, Any]) -> Gpus | None:
    """From `docker info` of this machine."""
    return gpu_access(info, any(_specified(Path(folder)) for folder in info.get("CDISpecDirs") or []))


def gpu_access(info: Mapping[str, Any], specified: bool) -> Gpus | None:
    """CDI where a specification of NVIDIA's lies and the engine reads it, else NVIDIA's own runtime."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []]
    reads = bool(info.get("CDISpecDirs"))
    if any(d.startswith("nvidia.com/gpu") for d in devices) or (reads and specified):
        return "cdi"
    return "runtime" if "nvidia" in (info.get("Runtimes") or {}) else None


def _specified(folder: Path) -> bool:
    return any("nvidia.com/gpu" in path.read_text(errors="replace") for path in folder.glob("*.[yj]*"))


def _ids_are_of_configurations(info: Mapping[str, Any]) -> bool:
    return not any("io.containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or [])


def _pass_on(output: Iterator[tuple[bytes | None, bytes | None]]) -> None:
    for out, err in output:
        for data, stream in ((out, sys.stdout), (err, sys.stderr)):
            if data:
                cast(IO[bytes], stream.buffer).write(data)
                stream.flush()


def _short(error: Exception) -> str:
    return (str(getattr(error, "explanation", None) or error).splitlines() or ["no reason given"])[0][:300]


class _ArchiveStream:
    """Pieces of bytes as a file that can only be read on."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        taken, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return taken


ENGINE = Docker()
