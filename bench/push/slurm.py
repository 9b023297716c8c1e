"""A run as a job of Slurm's: what `bench push --slurm` asks sbatch for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.base.errors import BadInput

GRACE_SECONDS = 90  # before the time is up: what was measured is packed and signed
_ONE_LINE = re.compile(r"[^\n\r\0]+")


@dataclass(frozen=True, slots=True)
class Slurm:
    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    gpus: str | None = None  # of each node: 8, or h100:8
    nodes: int = 1
    minutes: int = 120
    exclusive: bool = True  # a neighbour on the node would be in every figure
    options: tuple[str, ...] = ()  # as sbatch takes them: --qos=high

    def __post_init__(self) -> None:
        for option in self.options:
            if not option.startswith("-"):
                raise BadInput(f'"{option}" is no option of sbatch', advice="--sbatch=--qos=high")
        for value in (self.partition, self.account, self.constraint, self.gpus, *self.options):
            if value is not None and not _ONE_LINE.fullmatch(value):
                raise BadInput(f"{value!r} is no value for sbatch")
        if self.nodes < 1:
            raise BadInput(f"--slurm-nodes {self.nodes} is not at least 1")


def header(slurm: Slurm, run_id: str, folder: str) -> list[str]:
    """The #SBATCH lines. A job that is preempted, or whose node fails, starts again and goes on."""
    asked = {
        "job-name": f"bench-{run_id}",
        "chdir": folder,
        "output": f"{folder}/slurm.txt",
        "open-mode": "append",
        "nodes": str(slurm.nodes),
        "ntasks-per-node": "1",
        "time": str(slurm.minutes),
        "signal": f"B:TERM@{GRACE_SECONDS}",
        "partition": slurm.partition,
        "account": slurm.account,
        "constraint": slurm.constraint,
        "gpus-per-node": slurm.gpus,
        # A whole node is all its cores and GPUs, but of its memory only what is asked for: here all.
        "mem": "0" if slurm.exclusive and not any(o.startswith("--mem") for o in slurm.options) else None,
    }
    lines = [f"#SBATCH --{name}={_quoted(value)}" for name, value in asked.items() if value is not None]
    lines += ["#SBATCH --requeue", *(["#SBATCH --exclusive"] if slurm.exclusive else [])]
    return [*lines, *(f"#SBATCH {option}" for option in slurm.options)]


def _quoted(value: str) -> str:
    """As sbatch reads its own lines: a quote where there is a blank, nothing where there is none."""
    return f'"{value}"' if re.search(r"[\s#&|]", value) else value
