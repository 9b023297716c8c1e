"""run.sh and its commands, line by line, for each engine, and for one node or several. Starts nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.push import run_script
from bench.push.remote import CommandResult
from bench.push.run_script import GroupMember, Job, argv, script, shell_line, state_script
from bench.push.slurm import Slurm

RUN = "0123456789ab"
FOLDER = f"/home/me/.bench/runs/{RUN}"
ALONE = Job(
    RUN, "/home/me/.bench", "none", "/home/me/.bench/code", None, "/usr/bin/python3", (1000, 1000), 2**36,
    None, on_cpu=False,
)  # fmt: skip
IN_DOCKER = replace(ALONE, engine="docker", runnable="sha256:abc")
IN_VENV = replace(ALONE, engine="venv", environment="sha256:e0")
IN_POD = replace(ALONE, engine="kubernetes")
LEADER, FOLLOWER = GroupMember(2, 0, "n1:29500"), GroupMember(2, 1, "n1:29500")


class ToldNode:
    """A node that notes what it is asked, and gives the same answer to everything."""

    def __init__(self, code: int = 0, out: bytes = b"", err: bytes = b"") -> None:
        self.told: list[tuple[str, bytes]] = []
        self._answer = CommandResult(code, out, err)

    def ask(self, script: str, pieces: Sequence[bytes] = (), **_: Any) -> CommandResult:
        self.told.append((script, b"".join(pieces)))
        return self._answer

    def read(self, *_: Any, **__: Any) -> CommandResult:
        raise AssertionError("nothing is read piece by piece")

    def close(self) -> None: ...

    @property
    def script(self) -> str:
        ((script, _),) = self.told
        return script


def lines_of(job: Job) -> list[str]:
    return script(job).splitlines()


# --- run.sh ------------------------------------------------------------------------------------------------


def test_run_sh_of_a_run_without_a_container() -> None:
    passed_on = "stopping=; trap 'stopping=yes; kill -TERM $child 2>/dev/null' TERM INT"
    again = (
        'while [ "$stopping" ]; do stopping=; wait $child; again=$?; [ $again = 127 ] || code=$again; done'
    )
    assert script(ALONE) == "\n".join(
        [
            "#!/bin/sh",
            f"# Run {RUN}, written by bench push. Started again, it resumes.",
            f"cd {FOLDER} || exit 3",
            "umask 022; ulimit -c 0",
            "rm -f exit pid lead code states",
            "mkdir -p tmp  # for compilers; removed with the run",
            "export PYTHONPATH=/home/me/.bench/code PYTHONDONTWRITEBYTECODE=1",
            'export TMPDIR="$PWD/tmp" XDG_CACHE_HOME="$PWD/tmp" TRITON_CACHE_DIR="$PWD/tmp/triton"',
            "/usr/bin/python3 -m bench run manifest.json --device auto --out out --challenge challenge.json"
            " --resume >/dev/null 2>>log.txt </dev/null &",
            "child=$!",
            passed_on,
            "echo $$ >pid",
            "trap '' HUP",
            "wait $child; code=$?",
            again,
            "echo $code >exit.part && mv exit.part exit",
            "exit $code",
            "",
        ]
    )


def test_a_container_of_an_earlier_attempt_is_removed_where_the_engine_keeps_them() -> None:
    for engine in ("docker", "podman"):
        removal = f"{engine} rm -f bench-{RUN} >/dev/null 2>&1; "
        assert removal in lines_of(replace(IN_DOCKER, engine=engine))
    for engine in ("apptainer", "none", "venv", "kubernetes"):
        assert " rm -f bench-" not in script(replace(IN_VENV, engine=engine))


def test_only_engines_without_a_container_and_apptainer_need_a_folder_for_compilers() -> None:
    made = "mkdir -p tmp  # for compilers; removed with the run"
    for engine in ("none", "venv", "apptainer"):
        assert made in lines_of(replace(IN_VENV, engine=engine))
    for engine in ("docker", "podman", "kubernetes"):
        assert made not in lines_of(replace(IN_VENV, engine=engine))
    for engine in ("docker", "apptainer", "kubernetes"):
        assert "PYTHONPATH" not in script(replace(IN_VENV, engine=engine))


def test_an_environment_has_a_home_of_its_own_and_its_libraries() -> None:
    own = [
        "unset PYTHONDONTWRITEBYTECODE",
        'export HOME="$PWD/tmp" XDG_CONFIG_HOME="$PWD/tmp" PYTHONPYCACHEPREFIX="$PWD/tmp/python"',
    ]
    assert [line for line in lines_of(IN_VENV) if line in own] == own
    assert not set(own) & set(lines_of(ALONE))
    libraries = "export LD_LIBRARY_PATH='/my libs'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    assert libraries in lines_of(replace(IN_VENV, libraries="/my libs"))
    assert "LD_LIBRARY_PATH" not in script(IN_VENV)
    assert "LD_LIBRARY_PATH" not in script(replace(ALONE, libraries="/my libs"))


def test_an_environment_is_told_whether_several_nodes_train_together() -> None:
    together = "export BENCH_TOGETHER=yes"
    assert together not in lines_of(IN_VENV)
    assert together in lines_of(replace(IN_VENV, member=FOLLOWER))
    assert together in lines_of(replace(IN_VENV, slurm=Slurm(nodes=2)))
    assert together not in lines_of(replace(IN_VENV, slurm=Slurm(nodes=1)))
    assert together not in lines_of(replace(ALONE, member=FOLLOWER))


def test_a_pod_that_shall_train_on_gpus_ends_without_one() -> None:
    asked = (
        "[ -c /dev/nvidiactl ] || { echo 'this pod has no GPU: has the node the NVIDIA container runtime?' "
        ">>log.txt; echo 3 >exit; exit 3; }"
    )
    assert asked in lines_of(IN_POD)
    assert asked not in lines_of(replace(IN_POD, on_cpu=True))
    assert asked not in lines_of(replace(IN_POD, checks=True))
    assert asked not in lines_of(replace(IN_POD, on_cpu=True, checks=True))
    assert asked not in lines_of(ALONE)


def test_a_node_check_begins_anew_and_a_run_resumes() -> None:
    removal = f"rm -rf out/{RUN} out/{RUN}.tar  # a check never resumes"
    check = replace(ALONE, checks=True)
    assert removal in lines_of(check) and removal not in lines_of(ALONE)
    said = f"# Run {RUN}, written by bench push. Started again, it {{}}."
    assert said.format("starts over") in lines_of(check)
    assert said.format("resumes") in lines_of(ALONE)


# --- Slurm -------------------------------------------------------------------------------------------------


def test_a_job_of_slurm_has_its_header_and_notes_the_states_of_its_nodes() -> None:
    with_slurm = lines_of(replace(ALONE, slurm=Slurm()))
    assert with_slurm[1] == f"#SBATCH --job-name=bench-{RUN}"
    assert 'echo "$SLURM_JOB_NODELIST" >nodelist' in with_slurm
    states = with_slurm.index(
        "sinfo -h -N -n \"$SLURM_JOB_NODELIST\" -o '%N %T %E' 2>/dev/null | sort -u >states"
    )
    assert with_slurm[states + 1] == "echo $code >exit.part && mv exit.part exit"
    assert "SLURM" not in script(ALONE) and "sinfo" not in script(ALONE)


def test_one_node_of_slurm_meets_nobody_and_gets_sigterm_itself() -> None:
    one = script(replace(ALONE, slurm=Slurm(nodes=1)))
    assert "srun" not in one and "BENCH_MEET" not in one and "--meet" not in one and "[ -s code ]" not in one
    assert "kill -TERM $child 2>/dev/null" in one
    two = script(replace(ALONE, slurm=Slurm(nodes=2)))
    assert 'kill -TERM "$(cat lead 2>/dev/null || echo $child)" 2>/dev/null' in two
    assert "BENCH_MEET=$(head -n 1 names)" in two and "[ -s code ] && code=$(cat code)" in two


def test_several_nodes_train_in_one_step_and_are_checked_in_steps_apart() -> None:
    several = replace(ALONE, slurm=Slurm(nodes=3))
    training, check = script(several), script(replace(several, checks=True))
    assert "--kill-on-bad-exit=1" in training and "steps/" not in training and "--no-kill" not in training
    assert "--kill-on-bad-exit=1" not in check and "2>steps/$count" in check and "--no-kill" in check
    assert "the run starts over" in check and "the run resumes" in training
    assert "--no-kill" not in script(replace(several, checks=True, slurm=Slurm(nodes=1)))
    assert '[ "$(cat steps/* | grep -c "^exit ")" -ge $count ]' in check


def test_the_first_node_of_a_job_leads_and_the_others_follow_with_their_own_numbers() -> None:
    text = script(replace(ALONE, slurm=Slurm(nodes=3)))
    line = next(line for line in text.splitlines() if line.startswith("srun --export"))
    each = shlex.split(line)[shlex.split(line).index("-c") + 1]
    lead, _, follow = each.partition("else exec ")
    together = ' --meet "$BENCH_MEET" --meet-secret private/meet-secret'
    assert f" --resume --moved --nodes 3 --node 0{together} & echo $! >lead" in lead
    assert follow.startswith(
        f'/usr/bin/python3 -m bench run manifest.json --device auto --nodes 3 --node "$node"{together}; fi'
    )


def test_each_node_of_a_job_removes_its_container_before_and_after() -> None:
    text = script(replace(IN_DOCKER, slurm=Slurm(nodes=2)))
    removal = f"docker rm -f bench-{RUN} >/dev/null 2>&1; "
    assert text.count(removal) == 2
    assert f"timeout 60 srun sh -c {shlex.quote(removal)}" in text.splitlines()
    assert removal not in text.splitlines()
    assert "timeout 60" not in script(replace(IN_DOCKER, slurm=Slurm(nodes=1)))


def test_a_container_gets_the_memory_of_the_node_that_slurm_gives() -> None:
    words = argv(replace(IN_DOCKER, slurm=Slurm()), None)
    assert "--memory={BENCH_MEMORY}" in words and "--memory-swap={BENCH_MEMORY}" in words
    surveyed = argv(IN_DOCKER, None)
    limit = 2**36 - 2**36 // 20
    assert f"--memory={limit}" in surveyed and f"--memory-swap={limit}" in surveyed


# --- commands ----------------------------------------------------------------------------------------------


def test_a_run_is_told_its_files_device_budget_and_whether_it_moved() -> None:
    begins = ["/usr/bin/python3", "-m", "bench", "run", "manifest.json", "--device"]
    files = ["--out", "out", "--challenge", "challenge.json", "--resume"]
    assert argv(ALONE, None) == [*begins, "auto", *files]
    assert argv(replace(ALONE, on_cpu=True), None) == [*begins, "cpu", *files]
    assert argv(replace(ALONE, budget_seconds=90.5), None) == [*begins, "auto", *files, "--budget", "90.5s"]
    for moved in (replace(ALONE, moved=True), replace(ALONE, slurm=Slurm())):
        assert argv(moved, None) == [*begins, "auto", *files, "--moved"]


def test_a_check_is_told_its_files_device_and_level() -> None:
    begins = ["/usr/bin/python3", "-m", "bench", "check", "manifest.json", "--device"]
    files = ["--out", "out", "--challenge", "challenge.json"]
    check = replace(ALONE, checks=True, budget_seconds=90, moved=True)
    assert argv(check, None) == [*begins, "auto", *files]
    deep = replace(check, on_cpu=True, level="deep")
    assert argv(deep, None) == [*begins, "cpu", *files, "--level", "deep"]


@pytest.mark.parametrize("checks", [False, True])
def test_a_follower_gets_neither_challenge_nor_place_for_results(checks: bool) -> None:
    job = replace(ALONE, checks=checks, budget_seconds=90, moved=True)
    meeting = ["--nodes", "2", "--node", "1", "--meet", "n1:29500", "--meet-secret", "private/meet-secret"]
    assert argv(job, FOLLOWER)[3:] == [
        "check" if checks else "run",
        "manifest.json",
        "--device",
        "auto",
        *meeting,
    ]
    leads = argv(job, LEADER)
    assert leads[-8:] == [*meeting[:3], "0", *meeting[4:]]
    assert "--challenge" in leads and "--out" in leads
    assert argv(job, replace(LEADER, in_public=True))[-1] == "--meet-in-public"


def test_a_third_node_follows_too() -> None:
    assert "--challenge" not in argv(ALONE, GroupMember(3, 2, "n1:29500"))


def test_a_pod_runs_bench_and_an_environment_is_confined_before_it_does() -> None:
    arguments = argv(ALONE, None)[3:]
    assert argv(IN_POD, None) == ["bench", *arguments]
    environment = "/home/me/.bench/environments/e0"
    confined = [f"{environment}/bin/python", "-S", "-P", "-m", "bench.environment.confined", environment]
    assert argv(IN_VENV, None) == [*confined, "--", *arguments]
    with_data = replace(IN_VENV, data=(PurePosixPath("/data/a"), PurePosixPath("/data/b")))
    assert argv(with_data, None) == [*confined, "--data", "/data/a", "--data", "/data/b", "--", *arguments]


def test_a_container_has_the_run_s_files_and_user_and_no_network() -> None:
    identity = Identity("sha256:c", ("sha256:l",))
    job = replace(IN_DOCKER, identity=identity, data=(PurePosixPath("/data"),))
    words = argv(job, None)
    for inside, own in {
        "/in/manifest.json": f"{FOLDER}/manifest.json",
        "/in/challenge.json": f"{FOLDER}/challenge.json",
        "/data": "/data",
    }.items():
        assert f"--mount=type=bind,source={own},target={inside},readonly" in words
    assert f"--mount=type=bind,source={FOLDER}/out,target=/out" in words
    assert {"--user=1000:1000", "--network=none", f"--name=bench-{RUN}"} <= set(words)
    (told,) = [word for word in words if word.startswith("--env=BENCH_IMAGE=")]
    named = {"config": "sha256:c", "diff_ids": ["sha256:l"]}
    assert json.loads(told.removeprefix("--env=BENCH_IMAGE=")) == named
    assert "--env=CUDA_VISIBLE_DEVICES={CUDA_VISIBLE_DEVICES}" in words
    assert not any("meet-secret" in word or "NCCL" in word or "infiniband" in word for word in words)
    assert not any("BENCH_IMAGE" in word for word in argv(IN_DOCKER, None))


def test_containers_that_train_together_share_network_devices_and_the_secret() -> None:
    leads, follows = argv(IN_DOCKER, LEADER), argv(IN_DOCKER, FOLLOWER)
    secret = f"--mount=type=bind,source={FOLDER}/private/meet-secret,target=/in/meet-secret,readonly"
    for words in (leads, follows):
        assert {secret, "--network=host", "--env=NCCL_IB_HCA={NCCL_IB_HCA}"} <= set(words)
        assert "--device=/dev/infiniband" in words
    assert any("challenge.json,target" in word for word in leads)
    assert not any("challenge" in word for word in follows)


@pytest.mark.parametrize(
    ("gpus", "on_cpu", "option"),
    [
        ("cdi", False, "--device=nvidia.com/gpu=all"),
        ("runtime", False, "--gpus=all"),
        ("cdi", True, None),
        (None, False, None),
        (None, True, None),
    ],
)
def test_a_container_gets_gpus_if_the_node_has_some_and_the_run_uses_them(
    gpus: Any, on_cpu: bool, option: str | None
) -> None:
    words = argv(replace(IN_DOCKER, gpus=gpus, on_cpu=on_cpu), None)
    assert [word for word in words if "gpu" in word] == ([option] if option else [])


def test_each_engine_has_its_own_command_and_apptainer_a_folder_for_its_cache() -> None:
    assert argv(IN_DOCKER, None)[:2] == ["docker", "run"]
    podman = argv(replace(IN_DOCKER, engine="podman"), None)
    assert podman[:2] == ["podman", "run"] and "--userns=keep-id" in podman
    apptainer = argv(replace(IN_DOCKER, engine="apptainer"), None)
    assert apptainer[:2] == ["apptainer", "run"]
    assert f"--bind={FOLDER}/tmp:/cache:rw" in apptainer


# --- shell -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "shell"),
    [
        ("plain", "plain"),
        ("two words", "'two words'"),
        ("", "''"),
        ("{BENCH_MEET}", '"$BENCH_MEET"'),
        ("{BENCH_NODE}", '"$node"'),
        ("--memory={BENCH_MEMORY}", '--memory="$BENCH_MEMORY"'),
        ("a b{BENCH_NODE}c d{BENCH_MEET}", "'a b'\"$node\"'c d'\"$BENCH_MEET\""),
        ("{OTHER}{BENCH_MEET}", '"$OTHER""$BENCH_MEET"'),
        ("{OTHER}", "'{OTHER}'"),
        ("{OTHER}{BENCH", "'{OTHER}{BENCH'"),
        ("--env=A={A}", '${A+--env=A="$A"}'),
        ("--env=A={B}", "'--env=A={B}'"),
        ("--ulimit=core=0", "--ulimit=core=0"),
        ("--ulimit=memlock=-1", "$([ -d /dev/infiniband ] && echo --ulimit=memlock=-1)"),
        ("--device=/dev/infiniband", "$([ -d /dev/infiniband ] && echo --device=/dev/infiniband)"),
    ],
)
def test_a_word_of_shell_is_quoted_and_its_variables_are_the_node_s(word: str, shell: str) -> None:
    assert shell_line([word]) == shell
    assert shell_line(["a", word]) == f"a {shell}"


def test_a_run_is_alive_by_its_process_or_its_container() -> None:
    begin = 'cd /p 2>/dev/null || { echo gone; exit 0; }; if [ -f exit ]; then echo "exit $(cat exit)"; '
    process = f"elif {run_script._is_own_process(RUN)}; then echo alive; "
    container = f'elif [ -n "$(docker ps -q --filter name=^bench-{RUN}$)" ]; then echo alive; '
    assert state_script("/p", RUN, "none", None) == f"{begin}{process}else echo dead; fi"
    assert state_script("/p", RUN, "docker", None) == f"{begin}{process}{container}else echo dead; fi"
    of_slurm = state_script("/p", RUN, "docker", "17")
    assert "squeue -h -j 17" in of_slurm and "docker" not in of_slurm and "/proc/" not in of_slurm


# --- what a node is asked ----------------------------------------------------------------------------------


def test_the_files_of_a_run_are_written_with_their_lengths() -> None:
    node = ToldNode()
    run_script.prepare(node, ALONE, b"manifest", b"challenge")
    text = script(ALONE).encode()
    assert node.told == [
        (
            f"umask 022; {{ mkdir -p {FOLDER}/out; }} || exit; set -e; cd {FOLDER}; "
            f"[ ! -L out/{RUN} ] || rm -f out/{RUN}; rm -f out/{RUN}/request.json out/{RUN}/run-cert.pub; "
            f"head -c 8 >manifest.json; head -c 9 >challenge.json; head -c {len(text)} >run.sh",
            b"manifestchallenge" + text,
        )
    ]


def test_a_secret_is_written_into_a_folder_for_the_user_alone() -> None:
    node = ToldNode()
    run_script.prepare(node, ALONE, b"manifest", b"challenge", b"secret")
    assert "mkdir -p -m 700 private; rm -f private/*; head -c 8 >manifest.json" in node.script
    assert node.script.endswith("; head -c 6 >private/meet-secret")
    assert node.told[0][1].endswith(b"secret")


@pytest.mark.parametrize(
    ("engine", "user", "owned"),
    [
        ("docker", (65534, 65534), True),
        ("docker", (1000, 65534), False),
        ("none", (65534, 65534), False),
        ("none", (1000, 1000), False),
    ],
)
def test_results_belong_to_nobody_where_the_container_runs_as_nobody(
    engine: str, user: tuple[int, int], owned: bool
) -> None:
    node = ToldNode()
    run_script.prepare(node, replace(IN_DOCKER, engine=engine, user=user), b"", b"")
    assert ("; chown 65534:65534 out; " in node.script) == owned


def test_what_was_shipped_and_is_gone_is_noticed_under_the_lock() -> None:
    node = ToldNode()
    run_script.prepare(node, replace(ALONE, claim="/home/me/.bench/claims/a b"), b"", b"")
    claim = "'/home/me/.bench/claims/a b'"
    assert f"[ -e {claim} ] || {{ echo 'what was shipped was not used for an hour" in node.script
    assert f"mkdir -p {FOLDER}/out && rm -f {claim}" in node.script
    assert "mkdir /home/me/.bench/.busy" in node.script


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        run_script.prepare(ToldNode(1, err=b"No space left"), ALONE, b"", b"")
    assert caught.value.message == "the run's folder cannot be made: No space left"
    assert caught.value.where == FOLDER


def test_a_run_is_started_in_a_session_of_its_own() -> None:
    node = ToldNode()
    assert run_script.start(node, ALONE) is None
    assert node.script == (
        f"cd {FOLDER} && rm -f exit pid && setsid -f sh {FOLDER}/run.sh </dev/null >/dev/null 2>&1 && "
        "{ n=0; while [ ! -e pid ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done; }"
    )
    with pytest.raises(EnvironmentCannot, match="starting the run failed: no such folder"):
        run_script.start(ToldNode(2, err=b"no such folder"), ALONE)


def test_a_job_is_submitted_and_its_number_returned() -> None:
    job, node = replace(ALONE, slurm=Slurm()), ToldNode(out=b"17;north\n")
    assert run_script.start(node, job) == "17"
    assert node.script == f"cd {FOLDER} && rm -f exit pid && sbatch --parsable run.sh"
    with pytest.raises(EnvironmentCannot, match="Slurm refuses the job: Invalid partition"):
        run_script.start(ToldNode(1, b"17\n", b"Invalid partition"), job)


def test_a_run_is_asked_to_end_by_its_process_or_its_container_or_by_slurm() -> None:
    process = f'cd /p && if {run_script._is_own_process(RUN)}; then kill -TERM "$(cat pid)"; '
    for engine, job, asked in (
        ("none", None, f"{process}fi 2>/dev/null; true"),
        ("podman", None, f"{process}else podman kill --signal=TERM bench-{RUN}; fi 2>/dev/null; true"),
        ("podman", "17", 'if [ "$(squeue -h -j 17 -o %T)" = PENDING ]; then scancel 17; '
         "else scancel --batch --signal=TERM 17; fi"),
    ):  # fmt: skip
        node = ToldNode()
        run_script.cancel(node, "/p", RUN, engine, job)
        assert node.script == asked
    with pytest.raises(EnvironmentCannot, match="ending the run failed"):
        run_script.cancel(ToldNode(1), "/p", RUN, "none", None)


def test_a_run_is_killed_with_its_container_and_its_processes_or_by_slurm() -> None:
    node = ToldNode()
    run_script.kill(node, "/p", RUN, "none", None)
    assert node.script.startswith(
        f"cd /p && {{ if {run_script._is_own_process(RUN)}; then tree() {{ kill -STOP"
    )
    assert node.script.endswith('kill -KILL $(tree "$(cat pid)"); fi; } >/dev/null 2>&1; true')
    node = ToldNode()
    run_script.kill(node, "/p", RUN, "docker", None)
    assert node.script.startswith(f"cd /p && {{ docker kill bench-{RUN}; if ")
    node = ToldNode()
    run_script.kill(node, "/p", RUN, "docker", "17")
    assert node.script == "scancel 17"
    with pytest.raises(EnvironmentCannot, match="killing the run failed"):
        run_script.kill(ToldNode(1), "/p", RUN, "none", None)
