"""Describe the container of a run in one form for all engines. Pure.

The container has an unprivileged user, a read-only root file system, no capabilities and no way to gain any,
limits on processes and memory, no core dumps, and no engine socket. It has no network, unless nodes train
together: they share the host's network and InfiniBand. Only /out (results), /tmp, and /cache (in memory) are
writable. /tmp is never executable, /cache is, and /out is under Docker and Apptainer, which have no option
against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath

from bench.base.names import GIB, VISIBLE

NOBODY = 65534  # uid and gid of a user that owns no file on any machine
# Paths inside the container.
MANIFEST, CHALLENGE, OUT, CACHE = "/in/manifest.json", "/in/challenge.json", "/out", "/cache"
MEET_SECRET = "/in/meet-secret"
# Devices of InfiniBand and RoCE, without which NCCL falls back to TCP silently.
RDMA = PurePosixPath("/dev/infiniband")
# Variables of the host that describe its network, passed to the containers of nodes that train together.
CONNECTED = (
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_MERGE_NICS", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_DMABUF_ENABLE", "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
)  # fmt: skip
PIDS = 8192  # most processes: enough for compilers and data loaders of eight ranks; stops a fork bomb


@dataclass(frozen=True, slots=True)
class Container:
    """A run in a container: its command, files, limits and environment."""

    image: str  # name in the engine's store
    command: tuple[str, ...]  # arguments of `bench`
    manifest: PurePath
    out: PurePath
    memory_bytes: int
    user: tuple[int, int] = (NOBODY, NOBODY)  # uid and gid of an unprivileged user
    gpus: bool = False
    network: bool = False  # share the host's network, for nodes that train together
    rdma: bool = False  # also pass the RDMA devices, and allow locked memory
    pids: int = PIDS
    cache_bytes: int = 8 * GIB  # size of /cache, for compiled kernels
    scratch_bytes: int = 2 * GIB  # size of /tmp
    shared_bytes: int = 8 * GIB  # size of /dev/shm, which the run's processes share
    environment: Mapping[str, str] = field(default_factory=dict)
    data: tuple[PurePath, ...] = ()  # folders of data, mounted read-only under their own paths
    challenge: PurePath | None = None  # an operator's challenge, for which the run makes a key of its own
    meet_secret: PurePath | None = None  # the secret of nodes that train together
    cache: PurePath | None = None  # host folder for /cache, if the engine cannot keep that in memory
    name: str | None = None  # name of the container in the engine's commands

    @property
    def inputs(self) -> Mapping[str, PurePath]:
        """Read-only files and folders of the host to mount, keyed by their path in the container."""
        files = {MANIFEST: self.manifest, CHALLENGE: self.challenge, MEET_SECRET: self.meet_secret}
        given = {inside: path for inside, path in files.items() if path is not None}
        return given | {str(folder): folder for folder in self.data}

    @property
    def tmpfs(self) -> Mapping[str, str]:
        """Mount options of in-memory file systems by path, in Docker's and Podman's syntax."""
        uid, gid = self.user
        common = f"rw,nosuid,nodev,uid={uid},gid={gid},mode=0700"
        return {
            CACHE: f"{common},exec,size={self.cache_bytes}",
            "/tmp": f"{common},noexec,size={self.scratch_bytes}",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables to set in the container; `handed_on` names those passed on from the host."""
        # bench keeps the run's key in XDG_CONFIG_HOME, here /tmp, which is in memory: no node stores the key.
        return {"XDG_CONFIG_HOME": "/tmp", "USER": "nobody", **self.environment}


def handed_on(*, network: bool) -> tuple[str, ...]:
    """Return names of host variables to pass on: the choice of GPUs and, with a network, its settings."""
    return (VISIBLE, *CONNECTED) if network else (VISIBLE,)


def limits(memory_bytes: int) -> int:
    """Return how much of a node's memory a container may use; the rest (2 GiB or 5%) keeps it reachable."""
    return max(memory_bytes - max(2 * GIB, memory_bytes // 20), memory_bytes // 2)
