"""Shell scripts that start a run on the nodes of a Slurm job, and that read the job's state and nodes.

FOLDER/  nodelist  the nodes as Slurm writes them, such as n[1-3]; names: the same, one a line
         steps/N   what the step of node N wrote, and its exit code, if each node has a separate step
         states    what sinfo said of the nodes when the job ended

The functions that return shell are pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bench.push.answers import number, short, understood
from bench.push.connection import plain
from bench.push.remote import Node, demand

_MOST_NODES = 1024  # of a job that are reported
_STEP_END_SECONDS = 10  # for the other nodes to end after the leader
_LAUNCHES = 24  # of a step on a node; srun gives up after 10 s on a node whose prolog takes longer
_BETWEEN_LAUNCHES_SECONDS = 10

# States of a job in squeue's output.
_WAITING = "PENDING|CONFIGURING|REQUEUED|REQUEUE_HOLD|SPECIAL_EXIT"
_OVER = "COMPLETED|CANCELLED|FAILED|TIMEOUT|DEADLINE|OUT_OF_MEMORY|BOOT_FAIL|NODE_FAIL|PREEMPTED|REVOKED"
# States of a node, in sinfo's output, in which it takes no jobs; or all of them with a star: it is silent.
_TROUBLE = ("down", "drain", "fail", "error", "unknown", "power", "reboot", "maint")
_SINFO = "sinfo -h -N -n \"{nodes}\" -o '%N %T %E' 2>/dev/null | sort -u"
# srun's message on clusters without a task plugin, with any --cpu-bind.
_NOISE = "lacks support for cpu binding"


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node of a Slurm job: its state at the job's end, and the message of its step if that failed."""

    name: str
    state: str = ""
    reason: str = ""
    said: str = ""

    @property
    def trouble(self) -> str:
        """The problem that Slurm reports, and the output of the node's step; empty without a problem."""
        takes_no_jobs = self.state.startswith(_TROUBLE) or self.state.endswith("*")
        reason = f": {self.reason}" if self.reason not in ("", "none") else ""
        parts = [f"Slurm: {self.state}{reason}" if takes_no_jobs else "", self.said]
        return "; ".join(filter(None, parts))

    @property
    def text(self) -> str:
        """The node's name, and in brackets its trouble if it has one."""
        return f"{self.name} ({self.trouble})" if self.trouble else self.name


def preparations(*, checks: bool) -> list[str]:
    """Return the lines of run.sh that write which nodes the job has, and whether Slurm started it again."""
    again = "starts over" if checks else "resumes"
    return [
        # The node of the job is not the surveyed login node.
        "BENCH_MEMORY=$(awk '/^MemTotal/ {printf \"%.0f\", $2 * 1024 * 0.95}' /proc/meminfo)",
        "export BENCH_MEMORY",
        'echo "$SLURM_JOB_NODELIST" >nodelist',
        'scontrol show hostnames "$SLURM_JOB_NODELIST" >names',
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || echo "Slurm started the job again, on $SLURM_JOB_NODELIST:'
        f' the run {again}" >>log.txt',
    ]


# The name is asked for first: at sites with public addresses, bench would refuse to meet at one.
MEETING = [
    "BENCH_MEET=$(head -n 1 names)",
    'getent hosts "$BENCH_MEET" >/dev/null || BENCH_MEET=$(scontrol -o show node "$BENCH_MEET" | '
    "sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')",
    "BENCH_MEET=$BENCH_MEET:$((20000 + SLURM_JOB_ID % 12000))",  # below Linux's ephemeral ports
    "export BENCH_MEET",
]


def in_one_step(lead: str, follow: str, prepare: str) -> list[str]:
    """Return the lines that start a run on all nodes of a job: if one node ends early, all end.

    An empty step is started first, until that succeeds on all nodes: by then their prologs have ended.
    """
    wait = f"n=0; until srun --cpu-bind=none true 2>>log.txt || [ $n -ge {_LAUNCHES} ]; do n=$((n + 1))"
    each = f"node=$SLURM_NODEID; {_on_each(lead, follow, prepare)}"
    srun = f"srun --export=ALL --kill-on-bad-exit=1 --cpu-bind=none sh -c {shlex.quote(each)}"
    wait += f"; sleep {_BETWEEN_LAUNCHES_SECONDS}; done"
    return [wait, f"{srun} >/dev/null 2>>log.txt </dev/null &", "child=$!"]


def in_steps_apart(lead: str, follow: str, prepare: str) -> list[str]:
    """Return the lines that start a step on each node of a job: a node that is lost ends no other.

    Slurm would end a single step on all nodes if it cannot be started on one of them.
    """
    each = f"node=$1; {_on_each(f'{lead} 2>>log.txt', follow, prepare)}"
    step = 'srun --export=ALL --nodes=1 --ntasks=1 --nodelist="$name" --cpu-bind=none'
    step += f" sh -c {shlex.quote(each)} sh $count >/dev/null 2>steps/$count </dev/null"
    again = (
        f"[ $code != 0 ] && grep -q 'launch failed' steps/$count && [ ! -s code ] && [ $n -lt {_LAUNCHES} ]"
    )
    return [
        "rm -rf steps; mkdir steps; count=0; child=",
        "while read -r name; do",
        f"  {{ n=0; while {step}; code=$?; {again}; do n=$((n + 1)); sleep {_BETWEEN_LAUNCHES_SECONDS}; done",
        "    echo exit $code >>steps/$count; } &",
        "  child=${child:-$!}; count=$((count + 1))",
        "done <names",
    ]


def _on_each(lead: str, follow: str, prepare: str) -> str:
    """Return the commands of each node of a job. The leader is on run.sh's node; its exit code counts."""
    lead = f"{lead} & echo $! >lead; wait $!; code=$?; echo $code >code; exit $code"
    return f'{prepare}if [ "$node" = 0 ]; then {lead}; else exec {follow}; fi'


def after(*, apart: bool, remove: str) -> list[str]:
    """Return the lines of run.sh for the end of a job with several nodes.

    They read the leader's exit code, wait for the other nodes, and remove containers that a killed step
    leaves.
    """
    lines = ["[ -s code ] && code=$(cat code)"]
    if apart:
        ended = '[ "$(cat steps/* | grep -c "^exit ")" -ge $count ]'
        lines.append(f"n=0; until {ended} || [ $n -ge {_STEP_END_SECONDS} ]; do sleep 1; n=$((n + 1)); done")
    # On a node that is gone, srun would wait forever.
    return [*lines, *([f"timeout 60 srun sh -c {shlex.quote(remove)}"] if remove else [])]


WRITE_STATES = f"{_SINFO.format(nodes='$SLURM_JOB_NODELIST')} >states"


def job_number(text: str) -> str:
    """Return the job's number from the last line of `sbatch --parsable`: JOB, or JOB;CLUSTER."""
    with understood("sbatch answers without the number of a job"):
        job = text.strip().splitlines()[-1].split(";")[0]
        return str(number(job))


def state_of_job(slurm_job: str, ended: str) -> str:
    """Return a script that prints the state of a Slurm job; it runs `ended` if the job has ended.

    Slurm is asked even if there is an exit code: a preempted or requeued job leaves one although it will run
    again. A job that Slurm does not know has ended. If Slurm does not answer, the job counts as running.
    """
    return (
        f"said=$(squeue -h -j {shlex.quote(slurm_job)} -o %T 2>&1) || "
        "case $said in *[Ii]nvalid*) said=;; *) said=SILENT;; esac; "
        # squeue may print warnings of the site besides the state.
        "state=$(echo \"$said\" | grep -x '[[:upper:]_]*'); "
        f"case $state in ''|{_OVER}) {ended};; "
        f"{_WAITING}) echo waiting; why=$(squeue -h -j {shlex.quote(slurm_job)} -o %r 2>/dev/null); {_WHY};; "
        "*) echo alive;; esac"
    )


# Prints the first line of $why, without characters that no answer of Slurm has.
_WHY = (
    "why=$(echo \"$why\" | head -n 1 | tr -cd '[:alnum:]_(),./: -' | head -c 100); "
    '[ "$why" ] && echo "why $why"'
)


def end_of_job(slurm_job: str) -> str:
    """Return a script that prints how a job ended, from Slurm's accounting or its controller."""
    job = shlex.quote(slurm_job)
    return (
        f"why=$(sacct -n -X -P -j {job} -o State 2>/dev/null | head -n 1); "
        f'[ "$why" ] || why=$(scontrol -o show job {job} 2>/dev/null | '
        f"sed -n 's/.*JobState=\\([[:upper:]_]*\\).*/\\1/p'); "
        f'[ "$why" ] || why="{FORGOTTEN}"; {_WHY}'
    )


FORGOTTEN = "Slurm has forgotten the job, so it does not say why"


def ask_nodes(node: Node, folder: str) -> tuple[JobNode, ...]:
    """Ask a login node for the nodes of a job that has ended, in the order of their numbers."""
    script = (
        f"cd {shlex.quote(folder)} 2>/dev/null || exit 0; "
        f"head -n {_MOST_NODES} names 2>/dev/null | sed 's/^/name /'; "
        # run.sh did not come to its end if its node was lost.
        f"[ -s states ] || [ ! -s nodelist ] || {_SINFO.format(nodes='$(cat nodelist)')} >states; "
        f"head -n {_MOST_NODES} states 2>/dev/null | cut -c 1-300 | sed 's/^/state /'; "
        # The leader's messages are in its bundle.
        'for f in steps/*; do [ -f "$f" ] && { [ "$f" != steps/0 ] || [ ! -s exit ]; } || continue; '
        'tail -n 1 "$f" | grep -qx "exit 0" && continue; '
        f"said=$(grep -v -e '^exit ' -e '{_NOISE}' \"$f\" | tail -n 2 | cut -c 1-200 | tr '\\n' ' '); "
        'echo "said ${f#steps/} $said"; done; exit 0'
    )
    return read_nodes(demand(node, script, "asking for the job's nodes"))


_NAME = re.compile(r"name ([\w.-]{1,64})", re.ASCII)
_STATE = re.compile(r"state ([\w.-]{1,64}) ([a-z_+]{1,40}[*~#!%$@^-]?)(?: (.*))?", re.ASCII)
_SAID = re.compile(r"said ([0-9]{1,4})(?: (.*))?")


def read_nodes(text: str) -> tuple[JobNode, ...]:
    """Parse the output of `ask_nodes`'s script; EnvironmentCannot for words that it never prints."""
    names: list[str] = []
    states: dict[str, tuple[str, str]] = {}
    said: dict[int, str] = {}
    with understood("the node's answer about its job's nodes has a form that bench's script never prints"):
        for line in text.splitlines():
            if match := _NAME.fullmatch(line):
                names.append(match[1])
            elif match := _STATE.fullmatch(line):
                states[match[1]] = (match[2], _shown(match[3]))
            elif match := _SAID.fullmatch(line):
                said[number(match[1])] = _shown(match[2])
            else:
                raise ValueError("a line that the script never prints")
    return tuple(
        JobNode(name, *states.get(name, ("", "")), said.get(at, "")) for at, name in enumerate(names)
    )


def _shown(text: str | None) -> str:
    return short(plain((text or "").strip()))


def with_names(text: str, names: Sequence[str]) -> str:
    """Return a text about nodes by their numbers, with the name of each behind its number."""

    def named(match: re.Match[str]) -> str:
        at = int(match[1])
        return f"{match[0]} ({names[at]})" if at < len(names) else match[0]

    return re.sub(r"\bnode ([0-9]+)\b", named, text)
