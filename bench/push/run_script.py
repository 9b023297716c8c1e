"""Write run.sh, start a run by it on a node, ask for the run's state, and end it; with or without Slurm.

PLACE/runs/RUN/     manifest.json, challenge.json, run.sh; log.txt, pid, exit; out/, as `bench run` leaves it
                    private/meet-secret, closed to other users, if nodes train together

run.sh is a plain shell script that can also be started again by hand: the run then resumes from its journal.
It does not belong to an SSH session, so that it survives a lost connection. `script` and `argv` are pure.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from bench.base.errors import EnvironmentCannot
from bench.base.names import (
    ANY_PYTHON,
    CONTAINER_ENGINES,
    ENGINES_WITH_STORE,
    IMAGE_VARIABLE,
    IN_POD,
    WITHOUT_CONTAINER,
)
from bench.base.strict_json import to_json
from bench.images.archive import Identity
from bench.images.container import (
    CHALLENGE,
    MANIFEST,
    MEET_SECRET,
    NOBODY,
    OUT,
    RDMA,
    Container,
    handed_on,
    limits,
)
from bench.images.engines import Gpus, apptainer, docker, podman
from bench.push import slurm_job
from bench.push.place_lock import locked
from bench.push.remote import Node, demand
from bench.push.slurm import Slurm, header, refused_by_sbatch

_NODE, _MEET, _MEMORY = "{BENCH_NODE}", "{BENCH_MEET}", "{BENCH_MEMORY}"  # replaced by `shell_line`
SECRET_FILE = "private/meet-secret"
_VARIABLE = re.compile(r"\{(\w+)\}")
_PASSED_ON = re.compile(r"--env=(\w+)=\{\1\}")  # an environment variable, passed on if the node sets it

# When several nodes train, only the leader's process gets SIGTERM: srun would kill all processes at once.
_LEADER = '"$(cat lead 2>/dev/null || echo $child)"'


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The place of one node among several that train together."""

    nodes: int
    node: int
    meet: str  # HOST:PORT of the first node
    in_public: bool = False  # whether that may be an address of the public internet


@dataclass(frozen=True, slots=True)
class Job:
    """A run on one node, or on the nodes of one Slurm job."""

    run_id: str
    place: str  # folder on the node, absolute
    engine: str
    runnable: str = ""  # name of the image on the node, or the folder of bench's code
    identity: Identity | None = None  # identity of the image
    python: str = ANY_PYTHON  # path of Python, for the engine "none"
    user: tuple[int, int] = (NOBODY, NOBODY)  # uid and gid in a container
    memory_bytes: int = 0  # memory of the node, by which a container is limited
    gpus: Gpus | None = None
    on_cpu: bool = False
    budget_seconds: float | None = None
    checks: bool = False  # whether the run is a node check instead of training
    level: str | None = None  # depth of a node check; None: the manifest's level
    slurm: Slurm | None = None
    member: GroupMember | None = None  # None: the node trains alone, or Slurm brings several together
    data: tuple[PurePosixPath, ...] = ()  # folders of data on the node
    moved: bool = False  # the run was begun on another machine of the same kind
    environment: str | None = None  # digest of the environment, for the engine "venv"
    libraries: str | None = None  # folder of the shared libraries of its Python, if that was brought there
    claim: str | None = None  # file by which others leave what was shipped; None: nobody shares the place

    @property
    def folder(self) -> str:
        """The run's folder on the node, absolute."""
        return f"{self.place}/runs/{self.run_id}"

    @property
    def in_environment(self) -> str:
        """Path of the environment on the node."""
        assert self.environment is not None
        return environment_folder(self.place, self.environment)

    @property
    def container(self) -> str:
        """Name of the run's container, by which a later command finds it."""
        return f"bench-{self.run_id}"


def environment_folder(place: str, digest: str) -> str:
    """Return the path on a node of the environment with this digest."""
    return f"{place}/environments/{digest.removeprefix('sha256:')}"


def script(job: Job) -> str:
    """Return the text of run.sh."""
    nodes = job.slurm.nodes if job.slurm is not None else 1
    several = nodes > 1
    apart = several and job.checks
    restart = "starts over" if job.checks else "resumes"
    sbatch = header(job.slurm, job.run_id, job.folder, keeps_nodes=apart) if job.slurm else []
    lines = ["#!/bin/sh", *sbatch]
    lines += [
        f"# Run {job.run_id}, written by bench push. Started again, it {restart}.",
        f"cd {shlex.quote(job.folder)} || exit 3",
        "umask 022; ulimit -c 0",  # a core dump would write the memory of processes to the node's disk
        "rm -f exit pid lead code states",
        *_preparations(job, several=several),
        *(_start_on_all(job, nodes) if several else _start_alone(job)),
        # SIGTERM is passed on: the run packs and signs its results before it ends.
        f"stopping=; trap 'stopping=yes; kill -TERM {_LEADER if several else '$child'} 2>/dev/null' TERM INT",
        "echo $$ >pid",
        "trap '' HUP",
        # A signal ends the wait, while the run continues or has just ended: so wait again for its exit code.
        # The shell answers 127 if it has reported the child's exit code already.
        "wait $child; code=$?",
        'while [ "$stopping" ]; do stopping=; wait $child; again=$?; [ $again = 127 ] || code=$again; done',
        *(slurm_job.after(apart=apart, remove=_remove_container(job)) if several else []),
        *([slurm_job.WRITE_STATES] if job.slurm else []),
        "echo $code >exit.part && mv exit.part exit",
        "exit $code",
        "",
    ]
    return "\n".join(lines)


def _start_alone(job: Job) -> list[str]:
    return [f"{shell_line(argv(job, job.member))} >/dev/null 2>>log.txt </dev/null &", "child=$!"]


def _start_on_all(job: Job, nodes: int) -> list[str]:
    """Return the lines that start a run on all nodes of a Slurm job."""
    lead = shell_line(argv(job, GroupMember(nodes, 0, _MEET)))
    follow = shell_line(argv(job, GroupMember(nodes, 1, _MEET)))
    start = slurm_job.in_steps_apart if job.checks else slurm_job.in_one_step
    return start(lead, follow, _remove_container(job))


def _preparations(job: Job, *, several: bool) -> list[str]:
    """Return the lines of run.sh that set variables and tidy up after an earlier attempt."""
    lines = []
    if job.slurm is not None:
        lines += slurm_job.preparations(checks=job.checks)
    if several:
        lines += slurm_job.MEETING
    elif _remove_container(job):
        lines.append(_remove_container(job))
    if job.checks:
        lines.append(f"rm -rf out/{job.run_id} out/{job.run_id}.tar  # a check never resumes")
    if job.engine in (*WITHOUT_CONTAINER, "apptainer"):
        lines.append("mkdir -p tmp  # for compilers; removed with the run")
    if job.engine in WITHOUT_CONTAINER:
        lines += [
            f"export PYTHONPATH={shlex.quote(job.runnable)} PYTHONDONTWRITEBYTECODE=1",
            'export TMPDIR="$PWD/tmp" XDG_CACHE_HOME="$PWD/tmp" TRITON_CACHE_DIR="$PWD/tmp/triton"',
        ]
    if job.engine == IN_POD and not (job.on_cpu or job.checks):
        lines.append(_GPU_OR_END)
    if job.engine == "venv":
        lines += [
            "unset PYTHONDONTWRITEBYTECODE",
            'export HOME="$PWD/tmp" XDG_CONFIG_HOME="$PWD/tmp" PYTHONPYCACHEPREFIX="$PWD/tmp/python"',
        ]
        lines += ["export BENCH_TOGETHER=yes"] if job.member or several else []
        if job.libraries:
            own = shlex.quote(job.libraries)
            lines.append(f"export LD_LIBRARY_PATH={own}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")
    return lines


# A pod that got no GPU would measure its processors. A node check finds out by itself.
_GPU_OR_END = (
    "[ -c /dev/nvidiactl ] || { echo 'this pod has no GPU: has the node the NVIDIA container runtime?' "
    ">>log.txt; echo 3 >exit; exit 3; }"
)


def _remove_container(job: Job) -> str:
    """Return shell that removes the container of a killed earlier attempt, which still has the name."""
    if job.engine not in ENGINES_WITH_STORE:
        return ""
    return f"{job.engine} rm -f {job.container} >/dev/null 2>&1; "


def argv(job: Job, member: GroupMember | None) -> list[str]:
    """Return the command of one node. A word may contain {NAME}, a variable that `shell_line` replaces."""
    follows = member is not None and member.node > 0
    make = _check_arguments if job.checks else _run_arguments
    arguments = make(job, member, follows=follows)
    if job.engine not in CONTAINER_ENGINES:
        files = {MANIFEST: "manifest.json", CHALLENGE: "challenge.json", MEET_SECRET: SECRET_FILE, OUT: "out"}
        command = [files.get(word, word) for word in arguments]
        if job.engine == IN_POD:
            return ["bench", *command]
        if job.engine == "none":
            return [job.python, "-m", "bench", *command]
        data = [word for folder in job.data for word in ("--data", str(folder))]
        # -S: what the environment would run as Python starts runs only once the environment was checked.
        confined = [f"{job.in_environment}/bin/python", "-S", "-P", "-m", "bench.environment.confined"]
        return [*confined, job.in_environment, *data, "--", *command]
    environment = {name: f"{{{name}}}" for name in handed_on(network=member is not None)}
    if job.identity:
        environment[IMAGE_VARIABLE] = json.dumps(to_json(job.identity))
    container = Container(
        image=job.runnable,
        command=tuple(arguments),
        manifest=PurePosixPath(f"{job.folder}/manifest.json"),
        challenge=None if follows else PurePosixPath(f"{job.folder}/challenge.json"),
        meet_secret=PurePosixPath(f"{job.folder}/{SECRET_FILE}") if member is not None else None,
        out=PurePosixPath(f"{job.folder}/out"),
        memory_bytes=limits(job.memory_bytes),
        data=job.data,
        user=job.user,
        gpus=not job.on_cpu and job.gpus is not None,
        network=member is not None,
        rdma=member is not None,
        environment=environment,
        name=job.container,
    )
    command = _engine_argv(job, container)
    if job.slurm is None:
        return command
    return [re.sub(r"^(--memory(?:-swap)?)=\d+$", rf"\1={_MEMORY}", word) for word in command]


def _check_arguments(job: Job, member: GroupMember | None, *, follows: bool) -> list[str]:
    words = ["check", MANIFEST, "--device", "cpu" if job.on_cpu else "auto"]
    words += [] if follows else ["--out", OUT, "--challenge", CHALLENGE]
    words += ["--level", job.level] if job.level else []
    return [*words, *_meeting(job, member, follows=follows)]


def _run_arguments(job: Job, member: GroupMember | None, *, follows: bool) -> list[str]:
    words = ["run", MANIFEST, "--device", "cpu" if job.on_cpu else "auto"]
    if not follows:
        words += ["--out", OUT, "--challenge", CHALLENGE, "--resume"]
        # Slurm may start a requeued job on another node.
        words += ["--moved"] if job.moved or job.slurm else []
        words += ["--budget", f"{job.budget_seconds:g}s"] if job.budget_seconds else []
    return [*words, *_meeting(job, member, follows=follows)]


def _meeting(job: Job, member: GroupMember | None, *, follows: bool) -> list[str]:
    """Return the options by which a node meets the others; none if it is alone."""
    if member is None:
        return []
    node = _NODE if job.slurm and follows else str(member.node)
    words = ["--nodes", str(member.nodes), "--node", node, "--meet", member.meet]
    return [*words, "--meet-secret", MEET_SECRET, *(["--meet-in-public"] if member.in_public else [])]


def _engine_argv(job: Job, container: Container) -> list[str]:
    if job.engine == "docker":
        return docker.argv(container, job.gpus)
    if job.engine == "podman":
        return podman.argv(container)
    return apptainer.argv(replace(container, cache=PurePosixPath(f"{job.folder}/tmp")))


def shell_line(command: Sequence[str]) -> str:
    """Return a command as one quoted line of shell, in which variables and tests for devices still work."""
    return " ".join(_shell_word(word) for word in command)


def _shell_word(word: str) -> str:
    # Engines fail on devices that do not exist, and some on limits that they may not raise: so these options
    # are passed only on nodes that have RDMA devices.
    if word.endswith(f"={RDMA}") or (word.startswith("--ulimit=") and word != docker.NO_CORE):
        return f"$([ -d {RDMA} ] && echo {word})"
    if match := _PASSED_ON.fullmatch(word):
        return f'${{{match[1]}+--env={match[1]}="${match[1]}"}}'
    parts = _VARIABLE.split(word)  # texts, with names of variables between them
    if not any(name.startswith("BENCH_") for name in parts[1::2]):
        return shlex.quote(word)
    parts[1::2] = ['"$node"' if name == "BENCH_NODE" else f'"${name}"' for name in parts[1::2]]
    parts[::2] = [shlex.quote(text) if text else "" for text in parts[::2]]
    return "".join(parts)


def prepare(node: Node, job: Job, manifest: bytes, challenge: bytes, meet_secret: bytes = b"") -> None:
    """Make the run's folder and write its input files; keep the journal of an earlier attempt.

    `meet_secret` is that of nodes that train together.
    """
    folder = shlex.quote(job.folder)
    in_container = job.engine in CONTAINER_ENGINES
    owner = f"chown {NOBODY}:{NOBODY} out; " if job.user[0] == NOBODY and in_container else ""
    files = {"manifest.json": manifest, "challenge.json": challenge, "run.sh": script(job).encode()}
    private = ""
    if meet_secret:
        files[SECRET_FILE] = meet_secret
        private = "mkdir -p -m 700 private; rm -f private/*; "
    begin = f"mkdir -p {folder}/out"
    if job.claim:  # without it, another push may have removed what this one brought
        claim = shlex.quote(job.claim)
        lost = "{ echo 'what was shipped was not used for an hour, and is gone: push again' >&2; exit 1; }"
        begin = locked(job.place, f"[ -e {claim} ] || {lost}; {begin} && rm -f {claim}")
    out = f"out/{job.run_id}"  # an earlier attempt may have put a link there, which is not followed
    stale = f"[ ! -L {out} ] || rm -f {out}; "
    stale += f"rm -f {out}/request.json {out}/run-cert.pub; "  # for an earlier key
    write = "; ".join(f"head -c {len(data)} >{name}" for name, data in files.items())
    answer = node.ask(
        f"umask 022; {{ {begin}; }} || exit; set -e; cd {folder}; {owner}{stale}{private}{write}",
        files.values(),
    )
    if answer.code:
        raise EnvironmentCannot(f"the run's folder cannot be made: {answer.reason}", where=job.folder)


def start(node: Node, job: Job) -> str | None:
    """Start run.sh; return the number of its Slurm job, or None without Slurm.

    On return, the exit code of an earlier attempt is deleted, and run.sh has written its process id.
    """
    folder = shlex.quote(job.folder)
    fresh = f"cd {folder} && rm -f exit pid"
    if job.slurm is None:
        wait = "n=0; while [ ! -e pid ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done"
        run = f"setsid -f sh {folder}/run.sh </dev/null >/dev/null 2>&1"
        demand(node, f"{fresh} && {run} && {{ {wait}; }}", "starting the run")
        return None
    submitted = node.ask(f"{fresh} && sbatch --parsable run.sh")
    if submitted.code:
        raise refused_by_sbatch(submitted.reason)
    return slurm_job.job_number(submitted.text)


def state_script(folder: str, run_id: str, engine: str, job_number: str | None) -> str:
    """Return a script that prints a run's state: `alive`, `waiting`, `exit CODE`, `dead` or `gone`.

    For a job of Slurm, a line `why REASON` may follow: why it waits, or how it ended without an exit code.
    """
    ended = 'if [ -f exit ]; then echo "exit $(cat exit)"; '
    if job_number is not None:
        over = f"{ended}else echo dead; {slurm_job.end_of_job(job_number)}; fi"
        state = slurm_job.state_of_job(job_number, over)
    else:
        state = f"{ended}elif {_is_own_process(run_id)}; then echo alive; "
        if engine in ENGINES_WITH_STORE:
            state += f'elif [ -n "$({engine} ps -q --filter name=^bench-{run_id}$)" ]; then echo alive; '
        state += "else echo dead; fi"
    return f"cd {shlex.quote(folder)} 2>/dev/null || {{ echo gone; exit 0; }}; {state}"


def _is_own_process(run_id: str) -> str:
    """Return a shell test for a running run.sh, by its command line: another process may have its pid."""
    return (
        f"tr '\\0' ' ' <\"/proc/$(cat pid 2>/dev/null || echo none)/cmdline\" 2>/dev/null | grep -q {run_id}"
    )


def cancel(node: Node, folder: str, run_id: str, engine: str, job_number: str | None) -> None:
    """Ask a run to end, if it has not ended yet; the run packs and signs its results first."""
    if job_number is not None:
        job = shlex.quote(job_number)
        signal = f"scancel --batch --signal=TERM {job}"
        script = f'if [ "$(squeue -h -j {job} -o %T)" = PENDING ]; then scancel {job}; else {signal}; fi'
    else:
        script = f'cd {shlex.quote(folder)} && if {_is_own_process(run_id)}; then kill -TERM "$(cat pid)"; '
        if engine in ENGINES_WITH_STORE:  # a container continues if a logout kills run.sh
            script += f"else {engine} kill --signal=TERM bench-{run_id}; "
        script += "fi 2>/dev/null; true"
    demand(node, script, "ending the run")


def kill(node: Node, folder: str, run_id: str, engine: str, job_number: str | None) -> None:
    """End a run that does not end when asked, with all processes that it started; it packs no results."""
    if job_number is not None:
        script = f"scancel {shlex.quote(job_number)}"
    else:
        # Workers are in separate sessions, so the tree of processes is walked, and stopped on the way.
        tree = (
            "tree() { kill -STOP $1; for p in $(cat /proc/$1/task/*/children 2>/dev/null); do tree $p; done; "
            "echo $1; }"
        )
        script = f"cd {shlex.quote(folder)} && {{ "
        if engine in ENGINES_WITH_STORE:
            script += f"{engine} kill bench-{run_id}; "
        script += f'if {_is_own_process(run_id)}; then {tree}; kill -KILL $(tree "$(cat pid)"); fi; '
        script += "} >/dev/null 2>&1; true"
    demand(node, script, "killing the run")
