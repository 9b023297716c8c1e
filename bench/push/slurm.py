"""The #SBATCH lines of a run that `bench push --slurm` submits. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.base.errors import BadInput, EnvironmentCannot

GRACE_SECONDS = 90  # from SIGTERM to the time limit: the run packs and signs its results
# Options of sbatch that bench sets itself, by their names, and what to give to bench instead.
_BY_OPTION = {
    "--partition NAME": ("partition", "p"),
    "--account NAME": ("account", "A"),
    "--constraint FEATURES": ("constraint", "C"),
    "--gpus-per-node N": ("gpus-per-node",),
    "--time MINUTES": ("time", "t"),
    "--slurm-nodes N": ("nodes", "N"),
    "--shared, which leaves out --exclusive": ("exclusive",),
    "one push for each node, with --sbatch=--nodelist=NODE": ("array", "a"),
    "the login node of that cluster as HOST": ("clusters", "M", "cluster-constraint"),
    "nothing: bench sets it": (
        "job-name", "J", "chdir", "D", "output", "o", "error", "e", "open-mode", "signal", "ntasks", "n",
        "ntasks-per-node", "requeue", "no-requeue", "wrap", "parsable", "wait", "W", "test-only",
    ),
}  # fmt: skip
_INSTEAD = {name: instead for instead, names in _BY_OPTION.items() for name in names}
_ONE_LINE = re.compile(r"[^\n\r\0]+")


@dataclass(frozen=True, slots=True)
class Slurm:
    """Validated options of a Slurm job."""

    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    gpus: str | None = None  # GPUs of each node: 8, or h100:8
    nodes: int = 1
    minutes: int = 120
    exclusive: bool = True  # another job on the node would slow the run down
    options: tuple[str, ...] = ()  # further options of sbatch, such as --qos=high

    def __post_init__(self) -> None:
        for option in self.options:
            if not option.startswith("-"):
                raise BadInput(f'"{option}" is not an option of sbatch', advice="--sbatch=--qos=high")
            if (instead := _INSTEAD.get(_name(option))) is not None:
                raise BadInput(f"--sbatch={option} would change what bench submits", advice=f"give {instead}")
        for value in (self.partition, self.account, self.constraint, self.gpus, *self.options):
            if value is not None and not _ONE_LINE.fullmatch(value):
                advice = "give a value on one line, without quotes around it"
                raise BadInput(f"{value!r} is not a value for sbatch", advice=advice)
        if self.nodes < 1:
            raise BadInput(f"--slurm-nodes {self.nodes} is not at least 1", advice="--slurm-nodes 2")

    @property
    def where(self) -> str:
        """The options that decide on which nodes the job runs; with other options, a push is another run."""
        given = {"partition": self.partition, "constraint": self.constraint, "gpus-per-node": self.gpus}
        words = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return " ".join([*words, *sorted(self.options)])


def _name(option: str) -> str:
    """Return the name of an option such as --array=0-3, --array 0-3, -a 0-3 or -a0-3."""
    if option.startswith("--"):
        return re.split(r"[=\s]", option.removeprefix("--"))[0]
    return option[1:2]


# Why a job waits that never starts as it is, and what to do: reasons of squeue, by their beginnings.
_FOR_EVER = {
    "PartitionTimeLimit": "--time asks for more minutes than the partition allows (sinfo -o '%P %l')",
    "PartitionNodeLimit": "the partition has fewer nodes for one job than --slurm-nodes asks for",
    "PartitionConfig": "the partition does not take this job: look at --slurm-nodes, --time and --account",
    "PartitionDown": "the partition starts no jobs: ask its administrator, or --partition another",
    "PartitionInactive": "the partition starts no jobs: ask its administrator, or --partition another",
    "ReqNodeNotAvail": "a node that was asked for is down, drained or reserved (sinfo -R)",
    "Nodes required for job are DOWN": "nodes that were asked for are down, drained or reserved (sinfo -R)",
    "BadConstraints": "no nodes have these --constraint, --gpus-per-node or memory (sinfo -o '%N %f %G %m')",
    "Assoc": "a limit of the account (sacctmgr show assoc): --account another, or fewer nodes or minutes",
    "QOS": "a limit of the QOS (sacctmgr show qos): --sbatch=--qos=another, or fewer nodes or minutes",
    "InvalidAccount": "--account names one that may not be used here",
    "InvalidQOS": "--sbatch=--qos names one that may not be used here",
    "AccountNotAllowed": "--account names one that may not use this partition",
    "JobHeld": "somebody holds the job: scontrol release JOB lets it go",
    "job requeued in held state": "its node failed it, and Slurm holds it: scontrol release JOB lets it go",
    "launch failed requeued held": "a prolog or a node failed it (sinfo -R): scontrol release JOB lets it go",
    "DependencyNeverSatisfied": "--sbatch=--dependency names a job that did not end as asked",
}  # fmt: skip


# What sbatch says when it refuses a job, by parts of its words, and what to do.
_REFUSED = {
    "account": "sacctmgr show assoc user=$USER lists yours: --account NAME",
    "partition": "sinfo lists the partitions: --partition NAME",
    "node name": "sinfo -N lists the nodes: --sbatch=--nodelist=NODE",
    "gres": "sinfo -o '%N %G' lists what GPUs Slurm knows: --gpus-per-node N, or TYPE:N",
    "feature": "sinfo -o '%N %f' lists the features of nodes: --constraint FEATURES",
    "qos": "sacctmgr show assoc user=$USER format=qos lists yours: --sbatch=--qos=NAME",
    "time limit": "sinfo -o '%P %l' lists the limits: --time MINUTES",
    "node count": "sinfo -o '%P %D' lists how many nodes there are: --slurm-nodes N",
    "configuration is not available": "no nodes have that: sinfo -o '%P %D %c %m %G'",
    "node configuration": "no nodes have that: sinfo -o '%P %D %c %m %G'",
    "contact": "Slurm's controller does not answer: scontrol ping",
}


def refused_by_sbatch(said: str) -> EnvironmentCannot:
    """Return the error for a job that sbatch does not take."""
    advice = next((what for words, what in _REFUSED.items() if words in said.lower()), None)
    return EnvironmentCannot(f"Slurm refuses the job: {said}", advice=advice)


def waiting_text(reason: str) -> str:
    """Return why a job waits, with advice if it will not start by itself."""
    plain = reason.removeprefix("(")
    advice = next((what for beginning, what in _FOR_EVER.items() if plain.startswith(beginning)), None)
    return f"{reason} ({advice})" if advice else reason


def header(slurm: Slurm, run_id: str, folder: str, *, keeps_nodes: bool = False) -> list[str]:
    """Return the #SBATCH lines. --requeue restarts a job that was preempted or lost its node: it resumes.

    `keeps_nodes`: the job goes on with the other nodes if it loses one.
    """
    options = {
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
        # --exclusive grants all cores and GPUs, but only the memory that is requested; 0 means all of it.
        "mem": "0" if slurm.exclusive and not any(o.startswith("--mem") for o in slurm.options) else None,
    }
    lines = [f"#SBATCH --{name}={_quoted(value)}" for name, value in options.items() if value is not None]
    lines += ["#SBATCH --requeue", *(["#SBATCH --exclusive"] if slurm.exclusive else [])]
    lines += ["#SBATCH --no-kill"] if keeps_nodes else []
    return [*lines, *(f"#SBATCH {option}" for option in slurm.options)]


def _quoted(value: str) -> str:
    """Quote a value only if sbatch's own parser needs quotes: it keeps superfluous ones."""
    return f'"{value}"' if re.search(r"[\s#&|]", value) else value
