"""A cluster of one node: munged, slurmctld and slurmd from Debian's packages, all of it below one folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.nodes import free_port
from tests.e2e.services import SYSTEM, require

_CONF = """
ClusterName=bench
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MailProg=/bin/true
ReturnToService=2
JobRequeue=1
MpiDefault=none
NodeName={name} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={name} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """What a user of it has in the environment."""
    require("munged", "slurmctld", "slurmd", "sbatch")
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o700)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            name=socket.gethostname().split(".")[0], folder=folder, cpus=os.cpu_count(),
            controller=free_port(), daemon=free_port(),
        )
    )  # fmt: skip
    environment = {"SLURM_CONF": str(conf), "PATH": SYSTEM}
    own = [
        f"--{name}={folder}/munge/{name.split('-')[0]}"
        for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")
    ]
    with ExitStack() as stack:
        stack.enter_context(_daemon(["munged", "--foreground", "--force", *own], folder / "munged.log"))
        _until((folder / "munge/socket").exists, "munged", folder)
        stack.enter_context(_daemon(["slurmctld", "-D", "-f", str(conf)], folder / "slurmctld.log"))
        stack.enter_context(_daemon(["slurmd", "-D", "-f", str(conf)], folder / "slurmd.log"))
        _until(lambda: "idle" in _ask(["sinfo", "-h", "-o", "%T"], environment), "an idle node", folder)
        yield environment


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.stdout


@contextmanager
def _daemon(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"PATH": SYSTEM})
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _until(true: Callable[[], object], what: str, folder: Path) -> None:
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    logs = "\n".join(
        f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log")
    )
    raise AssertionError(f"it never came: {what}\n{logs}")
