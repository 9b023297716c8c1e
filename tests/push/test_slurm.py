"""Options of sbatch: those that would change what bench submits are refused, with what to give instead."""

from __future__ import annotations

import pytest

from bench.base.errors import BadInput
from bench.push.slurm import Slurm, refused_by_sbatch, waiting_text


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--array=0-3", "one push for each node, with --sbatch=--nodelist=NODE"),
        ("--array 0-3", "one push for each node, with --sbatch=--nodelist=NODE"),
        ("-a0-3", "one push for each node, with --sbatch=--nodelist=NODE"),
        ("--nodes=2", "--slurm-nodes N"),
        ("-N 2", "--slurm-nodes N"),
        ("--time=10", "--time MINUTES"),
        ("-pgpu", "--partition NAME"),
        ("--output=/tmp/x", "nothing: bench sets it"),
        ("--exclusive", "--shared, which leaves out --exclusive"),
        ("--wrap=id", "nothing: bench sets it"),
        ("--clusters=all", "the login node of that cluster as HOST"),
        ("-M north", "the login node of that cluster as HOST"),
    ],
)
def test_an_option_that_bench_sets_itself_is_refused(option: str, instead: str) -> None:
    with pytest.raises(BadInput) as refused:
        Slurm(options=("--qos=high", option))
    assert refused.value.message == f"--sbatch={option} would change what bench submits"
    assert refused.value.advice == f"give {instead}"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Invalid partition name specified", "sinfo lists the partitions"),
        ("Invalid node name specified", "sinfo -N lists the nodes"),
        ("Invalid generic resource (gres) specification", "sinfo -o '%N %G'"),
        ("Invalid feature specification", "sinfo -o '%N %f'"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "sinfo -o '%P %l'"),
        ("Invalid account or account/partition combination specified", "sacctmgr show assoc"),
    ],
)
def test_a_job_that_sbatch_refuses_comes_with_what_to_look_at(said: str, advice: str) -> None:
    """The messages are those of Slurm 22.05."""
    error = refused_by_sbatch(f"sbatch: error: Batch job submission failed: {said}")
    assert error.message == f"Slurm refuses the job: sbatch: error: Batch job submission failed: {said}"
    assert error.advice is not None and error.advice.startswith(advice)


def test_a_reason_that_no_waiting_helps_against_comes_with_what_to_change() -> None:
    assert waiting_text("Resources") == "Resources"
    assert waiting_text("PartitionTimeLimit").startswith("PartitionTimeLimit (--time asks for more minutes")
    assert waiting_text("QOSMaxWallDurationPerJobLimit").endswith("or fewer nodes or minutes)")
    assert "scontrol release JOB" in waiting_text("JobHeldUser")


@pytest.mark.parametrize("option", ["--qos=high", "--nodelist=n3", "-wn3", "--mem=8G", "--comment=--array=1"])
def test_any_other_option_is_passed_on(option: str) -> None:
    assert Slurm(options=(option,)).options == (option,)


def test_pushes_to_other_nodes_are_of_other_runs() -> None:
    """In a loop over nodes, each push would otherwise attach to the first one's run."""
    first, second = (Slurm(partition="gpu", options=(f"--nodelist=n{n}",)) for n in (1, 2))
    assert first.where == "--partition=gpu --nodelist=n1"
    assert second.where == "--partition=gpu --nodelist=n2"
    assert Slurm(minutes=10).where == Slurm(minutes=90).where == ""
