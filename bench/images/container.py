"""How a run is held in a container: one description, the same for every engine.

An unprivileged user, a root file system that cannot be written, no capabilities and none to be gained, no
network while one node works alone, limits on processes and memory, no engine's socket. Nodes that train
together have the host's network, and its InfiniBand. Two places can be written: /out, where the run goes,
and /cache, in memory, the only one from which anything is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.records.switches import VISIBLE

NOBODY = 65534  # owns no file on any machine
TOLD = "BENCH_IMAGE"  # how the runner inside learns the identity that was found outside
MANIFEST, CHALLENGE, OUT, CACHE = "/in/manifest.json", "/in/challenge.json", "/out", "/cache"
RDMA = Path("/dev/infiniband")  # of InfiniBand and RoCE; without it NCCL is silent, and sends over TCP
# Of the host's environment, between nodes: by what they are connected.
CONNECTED = (
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_MERGE_NICS", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_DMABUF_ENABLE", "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
)  # fmt: skip
PIDS = 8192  # compilers and loaders of eight ranks, with room; a fork bomb ends here
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Container:
    image: str  # as the engine knows it
    command: tuple[str, ...]  # of `bench`
    manifest: Path
    out: Path
    memory_bytes: int
    user: tuple[int, int] = (NOBODY, NOBODY)  # uid and gid; never root
    gpus: bool = False
    network: bool = False  # the host's, for nodes that train together
    rdma: bool = False  # and the devices by which its network reads and writes memory, which it may lock then
    pids: int = PIDS
    cache_bytes: int = 8 * GIB  # compiled kernels
    scratch_bytes: int = 2 * GIB
    shared_bytes: int = 8 * GIB  # between the processes of one run
    environment: Mapping[str, str] = field(default_factory=dict)
    challenge: Path | None = None  # an operator's, for a key of this run alone
    cache: Path | None = None  # a folder for it, for an engine that cannot have it in memory
    name: str | None = None  # by which an engine's own commands find it

    @property
    def inputs(self) -> Mapping[str, Path]:
        """What can only be read, by place."""
        return {MANIFEST: self.manifest} | ({CHALLENGE: self.challenge} if self.challenge else {})

    @property
    def tmpfs(self) -> Mapping[str, str]:
        """Mount options by place, as Docker and Podman write them."""
        uid, gid = self.user
        mine = f"rw,nosuid,nodev,uid={uid},gid={gid},mode=0700"
        return {
            CACHE: f"{mine},exec,size={self.cache_bytes}",
            "/tmp": f"{mine},noexec,size={self.scratch_bytes}",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """The environment: nothing of the host's but what `handed_on` names."""
        # The key is made in memory, for this run alone: the node keeps no secret.
        return {"XDG_CONFIG_HOME": "/tmp", "USER": "nobody", **self.environment}


def handed_on(network: bool) -> tuple[str, ...]:
    """What is obeyed inside, too, of the host's variables: which GPUs are ours, how nodes are connected."""
    return (VISIBLE, *CONNECTED) if network else (VISIBLE,)


def limits(memory_bytes: int) -> int:
    """What a container may have of the node's memory: all but what keeps the node reachable."""
    return max(memory_bytes - max(2 * GIB, memory_bytes // 20), memory_bytes // 2)
