"""The real scripts on this machine: a run starts, reports its state, ends, and starts again."""

from __future__ import annotations

import dataclasses
import os
import shlex
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Identity
from bench.images.engines import apptainer, docker
from bench.push import run_script, slurm_job
from bench.push.remote import Here
from bench.push.run_script import GroupMember, Job
from bench.push.slurm import Slurm, header

RUN = "0123456789ab"
DEAD = "dead\nwhy Slurm has forgotten the job, so it does not say why"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose Python measures nothing: it waits for SIGTERM or for a file."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\ntrap 'echo ending >&2; exit 5' TERM\necho \"told: $*\" >&2\n"
        "while [ ! -e finish ]; do sleep 0.05; done\n"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return Job(
        RUN, str(tmp_path / "a place"), "none", str(tmp_path / "code"), None, str(python),
        (os.getuid(), os.getgid()), 2**34, None, on_cpu=True, budget_seconds=60,
    )  # fmt: skip


def state(job: Job) -> str:
    return Here().ask(run_script.state_script(job.folder, RUN, job.engine, None)).text.strip()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begin(job: Job) -> None:
    log = Path(job.folder) / "log.txt"
    before = log.read_text() if log.exists() else ""
    run_script.prepare(Here(), job, b'{"a": 1}', b'{"nonce": 2}')
    run_script.start(Here(), job)
    until(lambda: state(job) == "alive" and log.exists() and log.read_text() != before)


def test_a_new_start_removes_the_exit_code_of_an_earlier_attempt(job: Job) -> None:
    run_script.prepare(Here(), job, b"{}", b"{}")
    (Path(job.folder) / "exit").write_text("5\n")
    slow = Path(job.folder) / "run.sh"
    slow.write_text(f"sleep 0.5\n{slow.read_text()}")  # as on a busy node
    run_script.start(Here(), job)
    found = state(job)
    (Path(job.folder) / "finish").touch()
    assert found == "alive"


def test_run_sh_runs_detached_and_writes_its_exit_code(job: Job) -> None:
    assert state(job) == "gone"
    begin(job)
    folder = Path(job.folder)
    assert (folder / "manifest.json").read_bytes() == b'{"a": 1}'
    assert (folder / "challenge.json").read_bytes() == b'{"nonce": 2}'
    assert os.getsid(int((folder / "pid").read_text())) != os.getsid(0)
    (folder / "finish").touch()
    until(lambda: state(job) == "exit 0")
    told = (folder / "log.txt").read_text()
    assert "told: -m bench run manifest.json --device cpu --out out --challenge challenge.json" in told
    assert "--resume --budget 60s" in told


def test_a_restarted_node_check_starts_from_the_beginning(job: Job) -> None:
    job = dataclasses.replace(job, checks=True, level="quick")
    begin(job)
    folder = Path(job.folder)
    half = folder / f"out/{RUN}/samples.jsonl"
    half.parent.mkdir()
    half.touch()
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job) == "exit 5")
    begin(job)
    assert not half.exists()
    told = (folder / "log.txt").read_text()
    assert (
        "told: -m bench check manifest.json --device cpu --out out --challenge challenge.json --level quick\n"
        in told
    )
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job) == "exit 5")


def test_a_stop_request_reaches_the_run_and_it_can_start_again(job: Job) -> None:
    begin(job)
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job) == "exit 5")
    assert "ending" in (Path(job.folder) / "log.txt").read_text()
    begin(job)
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job) == "exit 5")


def test_a_run_that_stops_before_the_script_looks_again_keeps_its_exit_code(job: Job) -> None:
    run_script.prepare(Here(), job, b"{}", b"{}")
    folder = Path(job.folder)
    before, wait, after = (folder / "run.sh").read_text().partition("wait $child; code=$?\n")
    (folder / "run.sh").write_text(f"{before}{wait}sleep 0.5\n{after}")  # as on a busy node
    run_script.start(Here(), job)
    until(lambda: (folder / "log.txt").exists() and "told:" in (folder / "log.txt").read_text())
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job).startswith("exit"))
    assert state(job) == "exit 5"


def test_a_killed_run_is_dead_and_not_finished(job: Job) -> None:
    begin(job)
    os.killpg(int((Path(job.folder) / "pid").read_text()), 9)
    until(lambda: state(job) == "dead")


def test_a_run_that_ignores_signals_is_killed_with_the_processes_that_it_started(job: Job) -> None:
    """The run's worker is in another session, as the workers of a trial are."""
    folder = Path(job.folder)
    run_script.prepare(Here(), job, b"{}", b"{}")
    hung = "trap '' TERM INT; setsid sleep 300 & echo $! >worker; while :; do sleep 1; done"
    before, _, after = (folder / "run.sh").read_text().partition(f"{job.python} -m bench")
    rest = after.partition(">/dev/null")[2]
    (folder / "run.sh").write_text(f"{before}sh -c {shlex.quote(hung)} >/dev/null{rest}")
    run_script.start(Here(), job)
    until(lambda: (folder / "worker").exists() and (folder / "worker").read_text() != "")
    worker = int((folder / "worker").read_text())
    run_script.cancel(Here(), job.folder, RUN, job.engine, None)
    assert state(job) == "alive"
    run_script.kill(Here(), job.folder, RUN, job.engine, None)
    until(lambda: state(job) == "dead")
    until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.parametrize(
    ("squeue", "found"),
    [
        ("echo PENDING", "waiting"),  # preempted: it wrote its exit code and will continue
        ("echo COMPLETING", "alive"),  # between states of the queue
        ("echo RUNNING", "alive"),
        ("echo COMPLETED", "exit 5"),
        ("true", "exit 5"),
        ("echo 'a site has its warnings' >&2", "exit 5"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "exit 5"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "alive"),
    ],
)
def test_slurm_decides_whether_a_job_with_an_exit_code_has_ended(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, found: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    reason = '[ "$5" = %r ] && echo "(Resources)" && exit'
    put(programs, squeue=f'[ "$3" = 17 ] || exit 9\n{reason}\n{squeue}', sacct="exit 1", scontrol="exit 1")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run_script.prepare(Here(), job, b"{}", b"{}")
    (Path(job.folder) / "exit").write_text("5\n")
    asked = run_script.state_script(job.folder, RUN, job.engine, "17")
    why = "\nwhy (Resources)" if found == "waiting" else ""
    assert Here().ask(asked).text.strip() == found + why
    (Path(job.folder) / "exit").unlink()
    assert Here().ask(asked).text.strip() == (DEAD if found == "exit 5" else found + why)


@pytest.mark.parametrize(
    ("sacct", "scontrol", "found"),
    [
        ("echo 'CANCELLED by 1000'; echo CANCELLED", "exit 1", "dead\nwhy CANCELLED by 1000"),
        ("exit 1", "echo 'JobId=17 JobName=bench JobState=NODE_FAIL Reason=None'", "dead\nwhy NODE_FAIL"),
        ("echo '$(reboot)\x1b[2J'", "exit 1", "dead\nwhy (reboot)2J"),
        ("exit 1", "exit 1", DEAD),  # without accounting, Slurm forgets a job after minutes
    ],
)
def test_slurm_tells_how_a_job_without_an_exit_code_ended(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sacct: str, scontrol: str, found: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    put(programs, squeue="true", sacct=sacct, scontrol=scontrol)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run_script.prepare(Here(), job, b"{}", b"{}")
    asked = run_script.state_script(job.folder, RUN, job.engine, "17")
    assert Here().ask(asked).text.strip() == found


def put(folder: Path, **programs: str) -> None:
    """Write programs of shell into a folder."""
    for name, lines in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)


def in_docker(job: Job, **changes: object) -> Job:
    image = {"engine": "docker", "runnable": "sha256:abc", "identity": Identity("sha256:abc", ("sha256:l",))}
    return dataclasses.replace(job, **(image | changes))  # type: ignore[arg-type]


def test_a_container_that_outlived_its_script_gets_a_stop_request(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\n[ "$1" = ps ] && echo abc || echo "$@" >>{tmp_path}/told\n')
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    orphan = in_docker(job)
    run_script.prepare(Here(), orphan, b"{}", b"{}")
    stranger = subprocess.Popen(["sleep", "60"])  # another process that has the pid of run.sh
    (Path(job.folder) / "pid").write_text(f"{stranger.pid}\n")
    assert state(orphan) == "alive"
    run_script.cancel(Here(), job.folder, RUN, "docker", None)
    assert (tmp_path / "told").read_text() == f"kill --signal=TERM bench-{RUN}\n"
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_container_on_a_node_has_the_same_restrictions_and_gets_the_challenge(job: Job) -> None:
    command = run_script.argv(in_docker(job), None)
    hardening = {"--read-only", "--cap-drop=ALL", "--network=none", "--security-opt=no-new-privileges"}
    assert hardening <= set(command)
    assert f"--name=bench-{RUN}" in command
    assert (
        f"--mount=type=bind,source={job.folder}/challenge.json,target=/in/challenge.json,readonly" in command
    )
    told = command[command.index("sha256:abc") + 1 :]
    assert told[:2] == ["run", "/in/manifest.json"]
    assert "--challenge" in told and "/in/challenge.json" in told and "--resume" in told
    assert not any("--gpus" in word or "nvidia.com" in word for word in command)
    with_gpus = run_script.argv(in_docker(job, gpus="cdi", on_cpu=False), None)
    assert "--device=nvidia.com/gpu=all" in with_gpus


@pytest.mark.parametrize("engine", ["podman", "apptainer"])
def test_other_engines_get_their_own_options(job: Job, engine: str) -> None:
    command = run_script.argv(in_docker(job, engine=engine), None)
    assert command[0] == engine
    assert any("/in/challenge.json" in word and "challenge.json" in word for word in command)


def test_apptainer_s_compilers_write_into_the_run_s_folder(job: Job) -> None:
    text = run_script.script(in_docker(job, engine="apptainer"))
    assert f"--bind={job.folder}/tmp:/cache:rw" in text
    assert text.index("mkdir -p tmp") < text.index("apptainer run")


def test_followers_get_no_challenge_and_all_share_the_network(job: Job) -> None:
    leader = run_script.argv(in_docker(job), GroupMember(2, 0, "gpu1:29500"))
    follower = run_script.argv(in_docker(job), GroupMember(2, 1, "gpu1:29500"))
    assert "--network=host" in leader and "--network=host" in follower
    assert "--challenge" in leader and "--challenge" not in follower
    assert follower[-8:-2] == ["--nodes", "2", "--node", "1", "--meet", "gpu1:29500"]


def test_nodes_that_train_together_share_a_secret_that_no_command_line_shows(job: Job) -> None:
    secret = b"0123456789abcdef" * 4
    member = GroupMember(2, 1, "gpu1:29500")
    together = dataclasses.replace(job, member=member)
    run_script.prepare(Here(), together, b"{}", b"{}", secret)
    folder = Path(job.folder)
    assert (folder / "private/meet-secret").read_bytes() == secret
    assert (folder / "private").stat().st_mode & 0o777 == 0o700
    assert secret.decode() not in (folder / "run.sh").read_text()
    assert run_script.argv(together, member)[-2:] == ["--meet-secret", "private/meet-secret"]
    container = run_script.argv(in_docker(together), member)
    assert container[-2:] == ["--meet-secret", "/in/meet-secret"]
    assert any(f"{folder}/private/meet-secret" in word and "/in/meet-secret" in word for word in container)


def test_a_node_that_trains_alone_gets_no_secret(job: Job) -> None:
    run_script.prepare(Here(), job, b"{}", b"{}")
    assert not (Path(job.folder) / "private").exists()
    assert "--meet-secret" not in run_script.argv(job, None)


def test_a_meeting_in_public_is_passed_on(job: Job) -> None:
    assert "--meet-in-public" in run_script.argv(job, GroupMember(2, 1, "8.8.8.8:29500", in_public=True))
    assert "--meet-in-public" not in run_script.argv(job, GroupMember(2, 1, "8.8.8.8:29500"))


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_network_devices_are_passed_on_if_the_node_has_them(
    job: Job, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that runs the script, not the one that wrote it, decides which devices exist."""

    def told(devices: Path) -> str:
        for other in (run_script, docker, apptainer):
            monkeypatch.setattr(other, "RDMA", devices)
        member = GroupMember(2, 0, "gpu1:29500")
        line = run_script.shell_line(run_script.argv(in_docker(job, engine=engine), member))
        return subprocess.run(
            ["sh", "-c", line.replace(engine, "echo", 1)], capture_output=True, text=True, check=True
        ).stdout

    here = Path(job.place).parent
    assert f"={here} " in told(here)
    without = told(Path("/no/devices"))
    assert "/no/devices" not in without
    limits = {word for word in told(here).split() if word.startswith("--ulimit=")} - {*without.split()}
    assert limits == {"docker": {"--ulimit=memlock=-1"}, "podman": {"--ulimit=host"}}.get(engine, set())


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_a_container_uses_the_nodes_visible_gpus(job: Job, engine: str) -> None:
    line = run_script.shell_line(run_script.argv(in_docker(job, engine=engine), None))

    def told(chosen: dict[str, str]) -> list[str]:
        shown = subprocess.run(
            ["sh", "-c", f"set -- {line}; printf '%s\\n' \"$@\""],
            env={"PATH": os.environ["PATH"], **chosen}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [word for word in shown.stdout.splitlines() if "CUDA" in word or "NCCL" in word]

    assert told({"CUDA_VISIBLE_DEVICES": "0, 2"}) == ["--env=CUDA_VISIBLE_DEVICES=0, 2"]
    assert told({"CUDA_VISIBLE_DEVICES": ""}) == ["--env=CUDA_VISIBLE_DEVICES="]
    assert told({"NCCL_IB_HCA": "alone, nobody asks"}) == []


# --- Slurm ----------------------------------------------------------------------------------------------

SLURM = Slurm("gpu", "proj-7", "h100&ib", "h100:8", 1, 90, options=("--qos=high",))


def test_the_slurm_header_contains_the_users_options() -> None:
    lines = header(SLURM, RUN, "/home/me/.bench/runs/x")
    assert {
        "#SBATCH --partition=gpu", "#SBATCH --account=proj-7", "#SBATCH --time=90",
        '#SBATCH --constraint="h100&ib"',
        "#SBATCH --gpus-per-node=h100:8", "#SBATCH --requeue", "#SBATCH --exclusive", "#SBATCH --qos=high",
        "#SBATCH --signal=B:TERM@90", "#SBATCH --open-mode=append", "#SBATCH --nodes=1",
    } <= set(lines)  # fmt: skip


@pytest.mark.parametrize(
    ("slurm", "asked"),
    [
        (SLURM, ["#SBATCH --mem=0"]),
        (dataclasses.replace(SLURM, options=("--mem-per-gpu=100G",)), ["#SBATCH --mem-per-gpu=100G"]),
        (dataclasses.replace(SLURM, exclusive=False), []),
    ],
)
def test_a_job_for_a_whole_node_requests_its_memory_too(slurm: Slurm, asked: list[str]) -> None:
    assert [line for line in header(slurm, RUN, "/home/me") if "mem" in line] == asked


@pytest.mark.parametrize(
    "slurm", [{"options": ("qos=high",)}, {"partition": "a\n#SBATCH --uid=0"}, {"nodes": 0}]
)
def test_a_malformed_sbatch_option_is_refused(slurm: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Slurm(**slurm)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["none", "docker", "podman", "apptainer"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_every_script_is_valid_shell(job: Job, engine: str, nodes: int) -> None:
    changed = in_docker(job, engine=engine, slurm=dataclasses.replace(SLURM, nodes=nodes))
    text = run_script.script(changed)
    assert text.startswith("#!/bin/sh\n#SBATCH ")
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    assert ("srun " in text) == (nodes > 1)
    if engine in (
        "docker",
        "podman",
    ):  # the memory of the compute node, not of the login node
        assert '--memory="$BENCH_MEMORY"' in text or '--memory="$BENCH_MEMORY"' in text
        assert str(job.memory_bytes) not in text


def test_several_nodes_meet_at_the_first(job: Job) -> None:
    text = run_script.script(in_docker(job, engine="none", slurm=dataclasses.replace(SLURM, nodes=2)))
    line = next(line for line in text.splitlines() if line.startswith("srun"))
    assert "--cpu-bind=none" in line  # otherwise its single task gets one core
    each = shlex.split(line.partition(">>")[0].partition(">/")[0])[-1]
    shown = subprocess.run(
        ["sh", "-c", each.replace("exec ", "echo ")],
        env={"SLURM_NODEID": "1", "BENCH_MEET": "n1:20001", "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert shown.strip().endswith("--nodes 2 --node 1 --meet n1:20001 --meet-secret private/meet-secret")
    assert "--challenge" not in shown


@pytest.mark.parametrize("number", [1, 12_345_678, 31_999, 67_000_000])
def test_the_rendezvous_port_is_outside_the_ephemeral_range(job: Job, number: int, tmp_path: Path) -> None:
    text = run_script.script(in_docker(job, engine="none", slurm=dataclasses.replace(SLURM, nodes=2)))
    lines = text[text.index("BENCH_MEET=$(head") : text.index("export BENCH_MEET")]
    (tmp_path / "names").write_text("localhost\nn2\n")
    told = subprocess.run(
        ["sh", "-c", f"{lines}echo $BENCH_MEET"],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(number)},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    host, _, port = told.strip().partition(":")
    assert host == "localhost"
    assert 20_000 <= int(port) < 32_768


def test_a_run_begins_anew_where_its_folder_became_a_link(job: Job, tmp_path: Path) -> None:
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    (elsewhere / "request.json").touch()
    out = Path(job.folder, "out")
    out.mkdir(parents=True)
    (out / RUN).symlink_to(elsewhere)
    run_script.prepare(Here(), job, b"{}", b"{}")
    assert (elsewhere / "request.json").exists()
    assert not (out / RUN).exists()


def test_each_node_of_a_check_has_a_step_of_its_own_and_the_secret_is_on_no_command_line(
    job: Job, tmp_path: Path
) -> None:
    """A stand-in for srun runs each step; one of them fails to launch first, as beside a long prolog."""
    check = dataclasses.replace(job, checks=True, slurm=dataclasses.replace(SLURM, nodes=3))
    run_script.prepare(Here(), check, b"{}", b"{}", b"the secret of this meeting")
    text = (Path(check.folder) / "run.sh").read_text()
    assert "#SBATCH --no-kill" in text and "the secret" not in text
    programs, folder = tmp_path / "bin", Path(check.folder)
    programs.mkdir()
    step = 'while [ "$1" != sh ]; do case $1 in --nodelist=*) name=${1#*=};; esac; shift; done'
    late = f'[ $name = n2 ] && mkdir {tmp_path}/late 2>/dev/null && {{ echo "launch failed" >&2; exit 1; }}'
    put(
        programs,
        scontrol="printf 'n1\\nn2\\nn3\\n'",
        srun=f'{step}\n{late}\nexec "$@"',
        sinfo="echo 'n1 idle none'; echo 'n2 drained bad cable'; echo 'n3 down* Not responding'",
        sleep="exec /bin/sleep 0.1",
        getent="true",
    )
    own = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "PATH": f"{programs}:{os.environ['PATH']}"}
    running = subprocess.Popen(["sh", "run.sh"], cwd=folder, env=os.environ | own)
    steps = [folder / "log.txt", folder / "steps/1", folder / "steps/2"]
    until(lambda: all(path.exists() and "told:" in path.read_text() for path in steps))
    (folder / "finish").touch()
    assert running.wait(20) == 0
    assert (
        "--nodes 3 --node 0 --meet n1:20007 --meet-secret private/meet-secret"
        in (folder / "log.txt").read_text()
    )
    for node in (1, 2):
        said = (folder / f"steps/{node}").read_text()
        assert f"--node {node} --meet n1:20007" in said and said.endswith("exit 0\n")
    one, two, three = slurm_job.ask_nodes(Here(), check.folder)
    assert [each.text for each in (one, two, three)] == [
        "n1", "n2 (Slurm: drained: bad cable)", "n3 (Slurm: down*: Not responding)",
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["name a b", "state n1", "said x", "name \033[2J", "hello"])
def test_lines_about_nodes_that_the_script_never_prints_are_errors_of_the_login_node(line: str) -> None:
    with pytest.raises(EnvironmentCannot):
        slurm_job.read_nodes(f"name n1\n{line}\n")


def test_names_stand_behind_the_numbers_of_nodes() -> None:
    assert (
        slurm_job.with_names("node 1 - node 2, node 11", ["a", "b", "c"])
        == "node 1 (b) - node 2 (c), node 11"
    )
