"""Docker, used through its API on this machine, and through its command line on nodes reached by SSH."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.base.distribution import pip_install
from bench.base.errors import EnvironmentCannot
from bench.base.signals import answered_by
from bench.images.archive import Identity, read_facts
from bench.images.container import OUT, RDMA, Container
from bench.images.engines import EngineFacts, Gpus, Inspected, no_image
from bench.images.engines.output import ContainerOutput

if TYPE_CHECKING:
    from docker import DockerClient

MEMLOCK = "--ulimit=memlock=-1"
NO_CORE = "--ulimit=core=0"  # a core dump would write the memory of processes to the node's disk
_STOP_SECONDS = 30  # between SIGTERM and SIGKILL, for the run to pack its results
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))  # default folders of CDI device specifications


def _options(c: Container) -> tuple[tuple[str, str, Any], ...]:
    """Return simple options, each as a word of the command line, and as name and value for the API."""
    user = "{}:{}".format(*c.user)
    network = "host" if c.network else "none"
    return (
        ("--init", "init", True),
        ("--read-only", "read_only", True),
        (f"--user={user}", "user", user),
        ("--cap-drop=ALL", "cap_drop", ["ALL"]),
        ("--security-opt=no-new-privileges", "security_opt", ["no-new-privileges"]),
        (f"--network={network}", "network_mode", network),
        ("--ipc=private", "ipc_mode", "private"),
        (f"--pids-limit={c.pids}", "pids_limit", c.pids),
        (f"--memory={c.memory_bytes}", "mem_limit", c.memory_bytes),
        (f"--memory-swap={c.memory_bytes}", "memswap_limit", c.memory_bytes),
        (f"--shm-size={c.shared_bytes}", "shm_size", c.shared_bytes),
        # The client gets the output. A log of the engine would let an image fill the host's disk.
        ("--log-driver=none", "log_config", {"Type": "none"}),
    )


def argv(container: Container, gpus: Gpus | None = "cdi") -> list[str]:
    """Return the `docker run` command for a container. Podman accepts all of its options except for GPUs."""
    c = container
    command = ["docker", "run", "--rm", *(word for word, _, _ in _options(c))]
    command += [NO_CORE]
    # A network card with RDMA accesses memory directly, so the run may lock that memory in place.
    command += [f"--device={RDMA}", MEMLOCK] if c.rdma else []
    command += [f"--tmpfs={path}:{mount_options}" for path, mount_options in c.tmpfs.items()]
    command += [f"--mount=type=bind,source={file},target={path},readonly" for path, file in c.inputs.items()]
    command += [f"--mount=type=bind,source={c.out},target={OUT}"]
    command += [f"--env={name}={value}" for name, value in c.settings.items()]
    command += [f"--name={c.name}"] if c.name else []
    if c.gpus:
        command += ["--gpus=all"] if gpus == "runtime" else ["--device=nvidia.com/gpu=all"]
    return [*command, c.image, *c.command]


def options(container: Container, gpus: Gpus | None = "cdi") -> dict[str, Any]:
    """Return the arguments of the API's `containers.create` that are equivalent to `argv`."""
    from docker.types import DeviceRequest, Mount, Ulimit

    c = container
    inputs = [Mount(path, str(file), type="bind", read_only=True) for path, file in c.inputs.items()]
    arguments = {name: value for _, name, value in _options(c)} | {
        "image": c.image,
        "name": c.name,
        "command": list(c.command),
        "ulimits": [
            Ulimit(name="core", soft=0, hard=0),
            *([Ulimit(name="memlock", soft=-1, hard=-1)] if c.rdma else []),
        ],
        "devices": [str(RDMA)] if c.rdma else [],
        "tmpfs": dict(c.tmpfs),
        "mounts": [*inputs, Mount(OUT, str(c.out), type="bind")],
        "environment": dict(c.settings),
    }
    if c.gpus and gpus == "runtime":
        arguments["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    elif c.gpus:
        arguments["device_requests"] = [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]
    return arguments


class Docker:
    """Docker on this machine, through its API."""

    name = "docker"

    def facts(self) -> EngineFacts:
        """Ask the daemon; EnvironmentCannot if it does not answer or runs rootless."""
        with self._client() as client:
            info = client.info()
        if why := unfit(info):
            raise EnvironmentCannot(why, advice="--engine podman, which needs no root either")
        return EngineFacts("docker", info["ServerVersion"], gpus_of(info), info.get("DockerRootDir"))

    def load(self, archive: Path) -> None:
        """Send the archive's bytes to the daemon through its API."""
        with self._client() as client, archive.open("rb") as file:
            client.images.load(file)

    def save(self, image: str, out: Path) -> None:
        """Write the image with its tag to a new file; EnvironmentCannot if there is no such image."""
        with self._client() as client, out.open("wb") as file:
            for piece in _find_image(client, image).save(named=True):
                file.write(piece)

    def inspect(self, image: str) -> Inspected:
        """Return the stored image; in a containerd store, all of it is read to learn its configuration."""
        with self._client() as client:
            stored = _find_image(client, image)
            labels = stored.attrs["Config"].get("Labels") or {}
            if names_images_by_configuration(client.info()):
                identity = Identity(str(stored.id), tuple(stored.attrs["RootFS"]["Layers"]))
            else:  # a containerd store names images by their manifest: read the configuration from the image
                identity = read_facts(cast(Any, _ArchiveStream(stored.save(named=False))), image).identity
            return Inspected(identity, labels, str(stored.id))

    def run(self, container: Container) -> int:
        """Create, follow and remove a container; at Ctrl-C it has _STOP_SECONDS to pack its results."""
        with self._client() as client, answered_by(signal.default_int_handler):
            shown = ContainerOutput()
            created = client.containers.create(**options(container, gpus_of(client.info())))
            try:
                output = created.attach(stream=True, demux=True, stdout=True, stderr=True)
                created.start()
                self._follow(created, output, shown)
                code = int(created.wait()["StatusCode"])
            finally:
                created.remove(force=True)
        shown.end()
        return code

    def _follow(
        self, created: Any, output: Iterator[tuple[bytes | None, bytes | None]], shown: ContainerOutput
    ) -> None:
        """Show the container's output on this terminal. On Ctrl-C, stop it and show the rest."""
        try:
            _show(output, shown)
        except KeyboardInterrupt:
            created.stop(timeout=_STOP_SECONDS)
            with suppress(KeyboardInterrupt):
                _show(output, shown)

    @contextmanager
    def _client(self) -> Iterator[DockerClient]:
        try:
            import docker
            from docker.errors import DockerException
        except ImportError:
            raise EnvironmentCannot(
                "the Docker SDK is not installed", advice=pip_install("engines")
            ) from None
        try:
            client = docker.from_env(timeout=3600)
            client.ping()
        except DockerException as error:
            advice = "start Docker, join the group docker, or set DOCKER_HOST"
            raise EnvironmentCannot(f"Docker does not answer: {_short(error)}", advice=advice) from None
        try:
            yield client
        except DockerException as error:
            raise EnvironmentCannot(f"docker: {_short(error)}") from None
        finally:
            client.close()


def _find_image(client: DockerClient, image: str) -> Any:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(image)
    except ImageNotFound:
        raise no_image("docker", image) from None


def unfit(info: Mapping[str, Any]) -> str | None:
    """Return the reason why this Docker cannot run bench, by its `docker info`; None if it can."""
    if not any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        return None
    return "Docker runs rootless: an unprivileged user inside the container could not write the results"


def gpus_of(info: Mapping[str, Any]) -> Gpus | None:
    """Return how this machine's Docker passes GPUs to containers, by its `docker info`; None if it cannot."""
    return gpu_access(
        info, specified=any(specifies_nvidia(Path(folder)) for folder in info.get("CDISpecDirs") or [])
    )


def gpu_access(info: Mapping[str, Any], *, specified: bool) -> Gpus | None:
    """Return "cdi" if Docker has a CDI specification of NVIDIA, else "runtime" if it has NVIDIA's runtime."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []]
    reads_specifications = bool(info.get("CDISpecDirs"))
    if any(d.startswith("nvidia.com/gpu") for d in devices) or (reads_specifications and specified):
        return "cdi"
    return "runtime" if "nvidia" in (info.get("Runtimes") or {}) else None


def specifies_nvidia(folder: Path) -> bool:
    """Whether a folder holds a CDI specification of NVIDIA GPUs."""
    return any(
        "nvidia.com/gpu" in path.read_text(errors="replace", encoding="utf-8")
        for path in folder.glob("*.[yj]*")
    )


def names_images_by_configuration(info: Mapping[str, Any]) -> bool:
    """Whether Docker names images by their configuration; a containerd store names them by their manifest."""
    return "io.containerd.snapshotter" not in json.dumps(info.get("DriverStatus") or [])


def _show(output: Iterator[tuple[bytes | None, bytes | None]], shown: ContainerOutput) -> None:
    for out, err in output:
        shown.out(out or b"")
        shown.err(err or b"")


def _short(error: Exception) -> str:
    return (str(getattr(error, "explanation", None) or error).splitlines() or ["no reason given"])[0][:300]


class _ArchiveStream:
    """A readable stream over an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that are left for -1; fewer only at the end."""
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        taken, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return taken


ENGINE = Docker()
