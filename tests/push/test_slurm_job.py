"""Shell for the nodes of a Slurm job, line by line, and what its answers say about each node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.push import slurm_job
from bench.push.remote import Here
from bench.push.slurm_job import JobNode, after, in_one_step, in_steps_apart, job_number, read_nodes


def run(script: str, folder: Path, **programs: str) -> str:
    """Run a script in a folder, with programs of shell before all others; return what it prints."""
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    for name, lines in programs.items():
        (own / name).write_text(f"#!/bin/sh\n{lines}\n")
        (own / name).chmod(0o755)
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, env={"PATH": f"{own}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, encoding="utf-8",
    ).stdout  # fmt: skip


# --- what is said of a node --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    ["down", "down~", "drained", "draining", "fail", "failing", "error", "unknown", "power_down",
     "powering_up", "reboot", "reboot_issued", "maint", "idle*", "alloc*"],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_is_named_with_its_state(state: str) -> None:
    assert JobNode("n1", state).text == f"n1 (Slurm: {state})"


@pytest.mark.parametrize("state", ["idle", "allocated", "mixed", "completing", "resv", ""])
def test_a_node_that_takes_jobs_is_named_alone(state: str) -> None:
    assert JobNode("n1", state, "a reason").text == "n1"


def test_a_reason_is_shown_if_there_is_one() -> None:
    assert JobNode("n1", "down", "bad cable").trouble == "Slurm: down: bad cable"
    assert JobNode("n1", "down", "none").trouble == "Slurm: down"
    assert JobNode("n1", "down", "").trouble == "Slurm: down"


def test_what_a_step_said_stands_beside_the_state() -> None:
    assert JobNode("n1", "idle", said="no such file").text == "n1 (no such file)"
    assert JobNode("n1", "down", "bad", "killed").trouble == "Slurm: down: bad; killed"


# --- answers -----------------------------------------------------------------------------------------------


def test_nodes_are_in_the_order_of_their_names_and_what_is_said_belongs_to_their_numbers() -> None:
    text = "name n2\nname n1\nstate n1 drained* bad cable \nstate n3 down none\nsaid 0 killed\nsaid 1 \n"
    assert read_nodes(text) == (
        JobNode("n2", said="killed"),
        JobNode("n1", "drained*", "bad cable"),
    )
    assert read_nodes("name n1\nstate n1 idle\nsaid 0\n") == (JobNode("n1", "idle"),)
    assert read_nodes("") == ()


def test_words_of_a_node_do_not_move_the_cursor() -> None:
    (node,) = read_nodes("name n1\nstate n1 down \x1b[2Jbad\n")
    assert "\x1b" not in node.text and "bad" in node.reason


@pytest.mark.parametrize(
    "line",
    ["name", "name n 1", f"name {'n' * 65}", "state n1", "state n1 DOWN", "said", "said x", "said 12345"],
)
def test_a_line_of_another_form_is_refused(line: str) -> None:
    assert read_nodes(f"name {'n' * 64}\nsaid 0\n")
    with pytest.raises(EnvironmentCannot, match="has a form that bench's script never prints"):
        read_nodes(f"{line}\n")


@pytest.mark.parametrize(
    ("text", "job"),
    [("17\n", "17"), ("17;north\n", "17"), ("welcome;9\n17;north\n", "17"), ("a\nb\n3\n", "3")],
)
def test_the_number_of_a_job_is_in_the_last_line_before_a_semicolon(text: str, job: str) -> None:
    assert job_number(text) == job


@pytest.mark.parametrize("text", ["", "\n", "submitted", "17 north"])
def test_an_answer_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(EnvironmentCannot, match="sbatch answers without the number of a job"):
        job_number(text)


def test_names_stand_behind_numbers_of_nodes_that_exist() -> None:
    assert slurm_job.with_names("node 0, node 1, node 2", ["a", "b"]) == "node 0 (a), node 1 (b), node 2"


# --- shell -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "found"),
    [
        *((state, "waiting") for state in (
            "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")),
        *((state, "ended") for state in (
            "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL",
            "NODE_FAIL", "PREEMPTED", "REVOKED", "")),
        *((state, "alive") for state in ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT")),
    ],
)  # fmt: skip
def test_each_state_of_a_job_is_one_of_three(state: str, found: str, tmp_path: Path) -> None:
    printed = run(
        slurm_job.state_of_job("17", "echo ended"), tmp_path, squeue=f'[ "$5" = %T ] && echo {state}'
    )
    assert printed == f"{found}\n"


def test_a_job_that_waits_says_why_in_one_line_of_harmless_characters(tmp_path: Path) -> None:
    long = "(Resources) " + "x" * 200
    (tmp_path / "reason").write_text(f"\x1b$`{long}\nsecond\n")
    squeue = '[ "$5" = %T ] && echo PENDING || cat reason'
    printed = run(slurm_job.state_of_job("17", "false"), tmp_path, squeue=squeue)
    assert printed == f"waiting\nwhy {long[:100]}\n"


def test_run_sh_notes_the_nodes_and_that_slurm_started_the_job_again(tmp_path: Path) -> None:
    for checks, again in ((True, "starts over"), (False, "resumes")):
        lines = "\n".join(slurm_job.preparations(checks=checks))
        given = "SLURM_JOB_NODELIST='n[1-2]'; SLURM_RESTART_COUNT=1\n"
        run(given + lines, tmp_path, scontrol="printf 'n1\\nn2\\n'")
        assert (tmp_path / "nodelist").read_text() == "n[1-2]\n"
        assert (tmp_path / "names").read_text() == "n1\nn2\n"
        said = (tmp_path / "log.txt").read_text().splitlines()[-1]
        assert said == f"Slurm started the job again, on n[1-2]: the run {again}"


def test_a_step_on_all_nodes_begins_when_an_empty_one_succeeds_and_is_tried_25_times(tmp_path: Path) -> None:
    wait, start, child = in_one_step("lead", "follow", "")
    run(wait, tmp_path, srun='echo "$@" >>asked; exit 1', sleep='echo "$1" >>slept')
    assert (tmp_path / "asked").read_text().splitlines() == ["--cpu-bind=none true"] * 25
    assert (tmp_path / "slept").read_text().splitlines() == ["10"] * 24
    (tmp_path / "asked").unlink()
    assert child == "child=$!"
    run(f"{wait}\n{start}\n{child}\nwait $child", tmp_path, srun='echo "$1" >>asked')
    assert (tmp_path / "asked").read_text().splitlines() == ["--cpu-bind=none", "--export=ALL"]


def of_one_node(launch: str, **programs: str) -> dict[str, Any]:
    return {"srun": f'echo "$@" >>asked; {launch}', "sleep": 'echo "$1" >>slept', **programs}


def test_a_step_that_cannot_be_launched_is_tried_25_times_and_one_that_fails_once(tmp_path: Path) -> None:
    lines = "\n".join([*in_steps_apart("lead", "follow", ""), "wait"])
    (tmp_path / "names").write_text("n1\n")
    run(lines, tmp_path, **of_one_node('echo "srun: launch failed" >&2; exit 1'))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 25
    assert asked[0].startswith("--export=ALL --nodes=1 --ntasks=1 --nodelist=n1 --cpu-bind=none sh -c ")
    assert (tmp_path / "slept").read_text().splitlines() == ["10"] * 24
    assert (tmp_path / "steps/0").read_text() == "srun: launch failed\nexit 1\n"
    (tmp_path / "asked").unlink()
    run(lines, tmp_path, **of_one_node("echo broken >&2; exit 7"))
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert (tmp_path / "steps/0").read_text() == "broken\nexit 7\n"


def test_the_leader_writes_its_exit_code_and_a_follower_becomes_its_command(tmp_path: Path) -> None:
    """The stand-in of srun runs each step at once, as on two nodes."""
    lines = "\n".join([*in_steps_apart("sh lead.sh", "sh follow.sh", "echo cleaned >>cleaned; "), "wait"])
    (tmp_path / "lead.sh").write_text("exit 5\n")
    (tmp_path / "follow.sh").write_text("echo followed >>followed\n")
    (tmp_path / "names").write_text("n1\nn2\n")
    run(lines, tmp_path, srun='while [ "$1" != sh ]; do shift; done; exec "$@"')
    assert (tmp_path / "code").read_text() == "5\n"
    assert (tmp_path / "lead").read_text().strip().isdigit()
    assert (tmp_path / "followed").read_text() == "followed\n"
    assert (tmp_path / "cleaned").read_text() == "cleaned\ncleaned\n"
    assert [(tmp_path / f"steps/{n}").read_text() for n in (0, 1)] == ["exit 5\n", "exit 0\n"]


def test_the_leader_s_exit_code_counts_at_the_end_of_a_job(tmp_path: Path) -> None:
    assert run("code=9\n" + "\n".join(after(apart=False, remove="")) + "\necho $code", tmp_path) == "9\n"
    (tmp_path / "code").write_text("5\n")
    assert run("code=9\n" + "\n".join(after(apart=False, remove="")) + "\necho $code", tmp_path) == "5\n"


def test_other_nodes_have_ten_seconds_to_end_after_the_leader(tmp_path: Path) -> None:
    waits = "\n".join(after(apart=True, remove=""))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/0").write_text("exit 0\n")
    run(f"count=2\n{waits}", tmp_path, sleep='echo "$1" >>slept')
    assert (tmp_path / "slept").read_text().splitlines() == ["1"] * 10
    (tmp_path / "steps/1").write_text("exit 0\n")
    (tmp_path / "slept").unlink()
    run(f"count=2\n{waits}", tmp_path, sleep='echo "$1" >>slept')
    assert not (tmp_path / "slept").exists()


def test_containers_that_a_killed_step_leaves_are_removed_on_every_node_within_a_minute() -> None:
    assert after(apart=False, remove="docker rm -f a") == [
        "[ -s code ] && code=$(cat code)",
        "timeout 60 srun sh -c 'docker rm -f a'",
    ]
    assert after(apart=False, remove="") == ["[ -s code ] && code=$(cat code)"]


def test_a_login_node_is_asked_for_at_most_1024_nodes(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("".join(f"n{n}\n" for n in range(1030)))
    (tmp_path / "states").write_text("".join(f"n{n} down none\n" for n in range(1030)))
    found = slurm_job.ask_nodes(Here(), str(tmp_path))
    assert len(found) == 1024
    assert found[-1].text == "n1023 (Slurm: down)"
