"""How a run starts, is asked after and is ended on its node: by itself, or as a job of Slurm's.

PLACE/runs/RUN/     manifest.json, challenge.json, run.sh; log.txt, pid, exit; out/, as `bench run` leaves it

run.sh is a plain shell script that anybody may read, and start again: the run goes on with its journal.
It belongs to no SSH session, so neither a lost connection nor a closed laptop ends it.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.names import IMAGE_VARIABLE
from bench.base.strict_json import to_json
from bench.images.archive import Identity
from bench.images.container import CHALLENGE, MANIFEST, NOBODY, OUT, Container, handed_on, limits
from bench.images.engines import Gpus, apptainer, docker, podman
from bench.push.quoting import words
from bench.push.remote import Node, demand
from bench.push.slurm import Slurm, header

_NODES, _NODE, _MEET, _MEMORY = "{BENCH_NODES}", "{BENCH_NODE}", "{BENCH_MEET}", "{BENCH_MEMORY}"

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")  # Slurm's states
_OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL", "NODE_FAIL",
         "PREEMPTED", "REVOKED")  # fmt: skip

_LEADER = '"$(cat lead 2>/dev/null || echo $child)"'  # srun, if it were told, would kill all at once


@dataclass(frozen=True, slots=True)
class Together:
    """One of several nodes that train together."""

    nodes: int
    node: int
    meet: str


@dataclass(frozen=True, slots=True)
class Job:
    run_id: str
    place: str  # absolute, on the node
    engine: str
    runnable: str  # the image there, or the folder of our code
    identity: Identity | None
    python: str  # for the engine none
    user: tuple[int, int]
    memory_bytes: int  # the node's
    gpus: Gpus | None
    on_cpu: bool
    budget_seconds: float | None = None
    checks: bool = False  # itself, instead of training
    level: str | None = None  # of that check; None: the manifest's
    slurm: Slurm | None = None
    together: Together | None = None
    moved: bool = False  # it was begun on another machine of the same kind

    @property
    def folder(self) -> str:
        return f"{self.place}/runs/{self.run_id}"

    @property
    def container(self) -> str:
        return f"bench-{self.run_id}"


def script(job: Job) -> str:
    """run.sh, whole."""
    several = job.slurm is not None and job.slurm.nodes > 1
    lead = together = job.together
    if several:
        assert job.slurm is not None
        together = lead = Together(job.slurm.nodes, 0, _MEET)
    command = words(argv(job, lead))
    if several:
        assert together is not None
        follow = words(argv(job, Together(together.nodes, 1, _MEET)))
        # The leader is on the node of run.sh. Where it ends early, so do the others: its exit code counts.
        leads = f"{command} & echo $! >lead; wait $!; code=$?; echo $code >code; exit $code"
        each = f'{_afresh(job)}if [ "$SLURM_NODEID" = 0 ]; then {leads}; else exec {follow}; fi'
        # One task a node, which a site's default would bind to one core.
        command = f"srun --kill-on-bad-exit=1 --cpu-bind=none sh -c {shlex.quote(each)}"
    begins = "begins anew" if job.checks else "goes on where it was"
    lines = ["#!/bin/sh", *(header(job.slurm, job.run_id, job.folder) if job.slurm else [])]
    lines += [
        f"# Run {job.run_id}, written by bench push. Started again, it {begins}.",
        f"cd {shlex.quote(job.folder)} || exit 3",
        "umask 022",
        "rm -f exit pid lead code",
        *_settings(job, several=several),
        f"{command} >/dev/null 2>>log.txt </dev/null &",
        "child=$!",
        # A polite end is passed on: what was measured is packed and signed before it is over.
        f"told=; trap 'told=yes; kill -TERM {_LEADER if several else '$child'} 2>/dev/null' TERM INT",
        "echo $$ >pid",
        "trap '' HUP",
        # A signal ends the wait, not the run, which may yet be over before the next line: its code is asked
        # for again. 127 is of a child that was waited for already.
        "wait $child; code=$?",
        'while [ "$told" ]; do told=; wait $child; again=$?; [ $again = 127 ] || code=$again; done',
        *(_afterwards(job) if several else []),
        "echo $code >exit.part && mv exit.part exit",
        "exit $code",
        "",
    ]
    return "\n".join(lines)


def _settings(job: Job, *, several: bool) -> list[str]:
    lines = []
    if job.slurm is not None:  # the machine that it runs on is not the one that was asked
        lines.append("BENCH_MEMORY=$(awk '/^MemTotal/ {printf \"%.0f\", $2 * 1024 * 0.95}' /proc/meminfo)")
        lines.append("export BENCH_MEMORY")
    if several:
        assert job.slurm is not None
        lines.append(
            'BENCH_MEET=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
            ":$((20000 + SLURM_JOB_ID % 12000))"  # below those that Linux gives away
        )
        lines.append("export BENCH_MEET")
    elif _afresh(job):
        lines.append(_afresh(job))
    if job.checks:
        lines.append(f"rm -rf out/{job.run_id} out/{job.run_id}.tar  # half a check is none")
    if job.engine in ("none", "apptainer"):
        lines.append("mkdir -p tmp  # what compilers leave goes with the run")
    if job.engine == "none":
        lines += [
            f"export PYTHONPATH={shlex.quote(job.runnable)} PYTHONDONTWRITEBYTECODE=1",
            'export TMPDIR="$PWD/tmp" XDG_CACHE_HOME="$PWD/tmp" TRITON_CACHE_DIR="$PWD/tmp/triton"',
        ]
    return lines


def _afresh(job: Job) -> str:
    """A container of an attempt that was killed would hold the name."""
    if job.engine not in ("docker", "podman"):
        return ""
    return f"{job.engine} rm -f {job.container} >/dev/null 2>&1; "


def _afterwards(job: Job) -> list[str]:
    """A step that was killed leaves its containers behind."""
    gone = [f"srun sh -c {shlex.quote(_afresh(job))}"] if _afresh(job) else []
    return ["[ -s code ] && code=$(cat code)", *gone]


def argv(job: Job, together: Together | None) -> list[str]:
    """The command of one node; a word may hold {NAME}, a variable of run.sh's."""
    follows = together is not None and together.node > 0
    inner = _check_words(job) if job.checks else _run_words(job, together, follows=follows)
    if job.engine == "none":
        places = {MANIFEST: "manifest.json", CHALLENGE: "challenge.json", OUT: "out"}
        return [job.python, "-m", "bench", *(places.get(word, word) for word in inner)]
    command = _engine_argv(job, Container(
        image=job.runnable,
        command=tuple(inner),
        manifest=Path(f"{job.folder}/manifest.json"),
        challenge=None if follows else Path(f"{job.folder}/challenge.json"),
        out=Path(f"{job.folder}/out"),
        memory_bytes=limits(job.memory_bytes),
        user=job.user,
        gpus=not job.on_cpu and job.gpus is not None,
        network=together is not None,
        rdma=together is not None,
        environment={name: f"{{{name}}}" for name in handed_on(together is not None)}
        | ({IMAGE_VARIABLE: json.dumps(to_json(job.identity))} if job.identity else {}),
        name=job.container,
    ))  # fmt: skip
    if job.slurm is None:
        return command
    return [re.sub(r"^(--memory(?:-swap)?)=\d+$", rf"\1={_MEMORY}", word) for word in command]


def _check_words(job: Job) -> list[str]:
    words = ["check", MANIFEST, "--device", "cpu" if job.on_cpu else "auto"]
    words += ["--out", OUT, "--challenge", CHALLENGE]
    return [*words, "--level", job.level] if job.level else words


def _run_words(job: Job, together: Together | None, *, follows: bool) -> list[str]:
    words = ["run", MANIFEST, "--device", "cpu" if job.on_cpu else "auto"]
    if not follows:
        words += ["--out", OUT, "--challenge", CHALLENGE, "--resume"]
        # A job that Slurm starts again may be on another of its nodes.
        words += ["--moved"] if job.moved or job.slurm else []
        words += ["--budget", f"{job.budget_seconds:g}s"] if job.budget_seconds else []
    if together is not None:
        node = _NODE if job.slurm and follows else str(together.node)
        words += ["--nodes", str(together.nodes), "--node", node, "--meet", together.meet]
    return words


def _engine_argv(job: Job, container: Container) -> list[str]:
    if job.engine == "docker":
        return docker.argv(container, job.gpus)
    if job.engine == "podman":
        return podman.argv(container)
    return apptainer.argv(replace(container, cache=Path(f"{job.folder}/tmp")))


# --- on the node ----------------------------------------------------------------------------------------


def prepare(node: Node, job: Job, manifest: bytes, challenge: bytes) -> None:
    """The run's folder and what it reads. A folder of an earlier attempt is kept: its journal goes on."""
    folder = shlex.quote(job.folder)
    owner = f"chown {NOBODY}:{NOBODY} out; " if job.user[0] == NOBODY and job.engine != "none" else ""
    files = {"manifest.json": manifest, "challenge.json": challenge, "run.sh": script(job).encode()}
    stale = f"rm -f out/{job.run_id}/request.json out/{job.run_id}/run-cert.pub; "  # of a key that is gone
    write = "; ".join(f"head -c {len(data)} >{name}" for name, data in files.items())
    made = node.ask(
        f"set -e; umask 022; mkdir -p {folder}/out; cd {folder}; {owner}{stale}{write}", files.values()
    )
    if made.code:
        raise EnvironmentCannot(f"the run's folder cannot be made there: {made.reason}", where=job.folder)


def start(node: Node, job: Job) -> str | None:
    """Starts run.sh; the number of the job, where Slurm has it.

    What an earlier attempt left is gone before anybody asks how this one goes, and this one is there.
    """
    folder = shlex.quote(job.folder)
    fresh = f"cd {folder} && rm -f exit pid"
    if job.slurm is None:
        begun = "n=0; while [ ! -e pid ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done"
        started = f"setsid -f sh {folder}/run.sh </dev/null >/dev/null 2>&1"
        demand(node, f"{fresh} && {started} && {{ {begun}; }}", "starting the run")
        return None
    return demand(node, f"{fresh} && sbatch --parsable run.sh", "sbatch").strip().split(";")[0]


def state_script(folder: str, run_id: str, engine: str, slurm_job: str | None) -> str:
    """`alive`, `waiting`, `exit CODE`, `dead` or `gone`, on one line."""
    ended = 'if [ -f exit ]; then echo "exit $(cat exit)"; '
    if slurm_job is not None:
        state = _slurm_state(slurm_job, f"{ended}else echo dead; fi")
    else:
        state = f"{ended}elif {_own_process(run_id)}; then echo alive; "
        if engine in ("docker", "podman"):
            state += f'elif [ -n "$({engine} ps -q --filter name=^bench-{run_id}$)" ]; then echo alive; '
        state += "else echo dead; fi"
    return f"cd {shlex.quote(folder)} 2>/dev/null || {{ echo gone; exit 0; }}; {state}"


def _own_process(run_id: str) -> str:
    """Whether run.sh is there; its number may be somebody else's by now."""
    return (
        f"tr '\\0' ' ' <\"/proc/$(cat pid 2>/dev/null || echo none)/cmdline\" 2>/dev/null | grep -q {run_id}"
    )


def _slurm_state(slurm_job: str, over: str) -> str:
    """A job that is preempted or requeued ends politely, exit code and all, and yet goes on: Slurm knows.

    Of a job that is long over it knows nothing; where it does not answer, the job may well be running.
    """
    return (
        f"said=$(squeue -h -j {shlex.quote(slurm_job)} -o %T 2>&1) || "
        "case $said in *[Ii]nvalid*) said=;; *) said=SILENT;; esac; "
        # A site's warnings may stand beside it.
        "state=$(echo \"$said\" | grep -x '[[:upper:]_]*'); "
        f"case $state in ''|{'|'.join(_OVER)}) {over};; {'|'.join(_WAITING)}) echo waiting;; "
        "*) echo alive;; esac"
    )


def cancel(node: Node, folder: str, run_id: str, engine: str, slurm_job: str | None) -> None:
    """Asks the run to end; it packs and signs what it has. It may be over by now."""
    if slurm_job is not None:
        job = shlex.quote(slurm_job)
        polite = f"scancel --batch --signal=TERM {job}"
        script = f'if [ "$(squeue -h -j {job} -o %T)" = PENDING ]; then scancel {job}; else {polite}; fi'
    else:
        script = f'cd {shlex.quote(folder)} && if {_own_process(run_id)}; then kill -TERM "$(cat pid)"; '
        if engine in ("docker", "podman"):  # a container outlives its run.sh, where a logout ends that
            script += f"else {engine} kill --signal=TERM bench-{run_id}; "
        script += "fi 2>/dev/null; true"
    demand(node, script, "ending the run")
