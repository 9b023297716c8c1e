"""Options of sbatch: those that would change what bench submits are refused, with what to give instead."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.push.slurm import Slurm, header, refused_by_sbatch, waiting_text

BENCH_SETS_IT = "nothing: bench sets it"
ONE_PUSH_EACH = "one push for each node, with --sbatch=--nodelist=NODE"


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        *((option, "--partition NAME") for option in ("--partition=gpu", "-pgpu")),
        *((option, "--account NAME") for option in ("--account=lab", "-A lab")),
        *((option, "--constraint FEATURES") for option in ("--constraint=ib", "-C ib")),
        ("--gpus-per-node=8", "--gpus-per-node N"),
        *((option, "--time MINUTES") for option in ("--time=10", "-t10")),
        *((option, "--slurm-nodes N") for option in ("--nodes=2", "-N 2")),
        ("--exclusive", "--shared, which leaves out --exclusive"),
        *((option, ONE_PUSH_EACH) for option in ("--array=0-3", "--array 0-3", "-a0-3", "-a 0-3")),
        ("--array=0-3=x", ONE_PUSH_EACH),
        *(
            (option, "the login node of that cluster as HOST")
            for option in ("--clusters=all", "-M north", "--cluster-constraint=a")
        ),
        *(
            (f"--{option}=x", BENCH_SETS_IT)
            for option in (
                "job-name", "chdir", "output", "error", "open-mode", "signal", "ntasks", "ntasks-per-node",
                "requeue", "no-requeue", "wrap", "parsable", "wait", "test-only",
            )
        ),
        *((f"-{letter}x", BENCH_SETS_IT) for letter in "JDoenW"),
    ],
)  # fmt: skip
def test_an_option_that_bench_sets_itself_is_refused(option: str, instead: str) -> None:
    with pytest.raises(BadInput) as refused:
        Slurm(options=("--qos=high", option))
    assert refused.value.message == f"--sbatch={option} would change what bench submits"
    assert refused.value.advice == f"give {instead}"


def test_an_option_begins_with_a_dash() -> None:
    with pytest.raises(BadInput, match=r'^"qos=high" is not an option of sbatch'):
        Slurm(options=("--qos=high", "qos=high"))


@pytest.mark.parametrize(
    "field", [{"partition": "a"}, {"account": "a"}, {"constraint": "a"}, {"gpus": "a"}, {"options": ("-wa",)}]
)
@pytest.mark.parametrize("more", ["\n#SBATCH --uid=0", "\r", "\0"])
def test_a_value_stays_on_its_line_of_the_script(field: dict[str, Any], more: str) -> None:
    """A second line could be another option."""
    Slurm(**field)
    ((name, value),) = field.items()
    longer = (*value[:-1], value[-1] + more) if isinstance(value, tuple) else value + more
    with pytest.raises(BadInput, match="is not a value for sbatch"):
        Slurm(**{name: longer})


def test_a_value_is_not_empty() -> None:
    with pytest.raises(BadInput, match=r"^'' is not a value for sbatch"):
        Slurm(partition="")


def test_a_job_has_at_least_one_node() -> None:
    assert Slurm(nodes=1).nodes == 1
    with pytest.raises(BadInput, match=r"^--slurm-nodes 0 is not at least 1"):
        Slurm(nodes=0)


# --- the lines of a script ---------------------------------------------------------------------------------

ALWAYS = [
    "#SBATCH --job-name=bench-0123",
    "#SBATCH --chdir=/p/run",
    "#SBATCH --output=/p/run/slurm.txt",
    "#SBATCH --open-mode=append",
    "#SBATCH --nodes=1",
    "#SBATCH --ntasks-per-node=1",
    "#SBATCH --time=120",
    "#SBATCH --signal=B:TERM@90",
]


def test_without_further_options_a_job_has_a_whole_node_for_two_hours() -> None:
    lines = [*ALWAYS, "#SBATCH --mem=0", "#SBATCH --requeue", "#SBATCH --exclusive"]
    assert header(Slurm(), "0123", "/p/run") == lines
    assert header(Slurm(), "0123", "/p/run", keeps_nodes=True) == [*lines, "#SBATCH --no-kill"]


def test_a_job_that_shares_its_node_asks_neither_for_all_memory_nor_for_all_cores() -> None:
    assert header(Slurm(exclusive=False), "0123", "/p/run") == [*ALWAYS, "#SBATCH --requeue"]


def test_every_option_of_a_job_has_its_line() -> None:
    slurm = Slurm("gpu", "proj-7", "h100", "h100:8", 4, 90, options=("--qos=high", "--comment=a"))
    assert header(slurm, "0123", "/p/run") == [
        *ALWAYS[:4],
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=90",
        "#SBATCH --signal=B:TERM@90",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=proj-7",
        "#SBATCH --constraint=h100",
        "#SBATCH --gpus-per-node=h100:8",
        "#SBATCH --mem=0",
        "#SBATCH --requeue",
        "#SBATCH --exclusive",
        "#SBATCH --qos=high",
        "#SBATCH --comment=a",
    ]


@pytest.mark.parametrize("options", [("--mem=8G",), ("--qos=high", "--mem-per-gpu=8G")])
def test_memory_that_the_user_asks_for_is_all_that_is_asked_for(options: tuple[str, ...]) -> None:
    lines = header(Slurm(options=options), "0123", "/p/run")
    assert [line for line in lines if "mem" in line] == [f"#SBATCH {options[-1]}"]


@pytest.mark.parametrize("value", ["a b", "a\tb", "a#b", "a&b", "a|b"])
def test_a_value_is_quoted_where_sbatch_would_take_it_apart(value: str) -> None:
    assert f'#SBATCH --constraint="{value}"' in header(Slurm(constraint=value), "0123", "/p/run")
    assert "#SBATCH --constraint=a,b" in header(Slurm(constraint="a,b"), "0123", "/p/run")


# --- what Slurm says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Invalid partition name specified", "sinfo lists the partitions"),
        ("Invalid node name specified", "sinfo -N lists the nodes"),
        ("Invalid generic resource (gres) specification", "sinfo -o '%N %G'"),
        ("Invalid feature specification", "sinfo -o '%N %f'"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "sinfo -o '%P %l'"),
        (
            "Invalid account or account/partition combination specified",
            "sacctmgr show assoc user=$USER lists",
        ),
        ("Invalid qos specification", "sacctmgr show assoc user=$USER format=qos"),
        ("Node count specification invalid", "sinfo -o '%P %D' lists how many"),
        ("Requested node configuration is not available", "no nodes have that"),
        ("Unable to contact slurm controller (connect failure)", "Slurm's controller does not answer"),
    ],
)
def test_a_job_that_sbatch_refuses_comes_with_what_to_look_at(said: str, advice: str) -> None:
    """The messages are those of Slurm 22.05."""
    error = refused_by_sbatch(f"sbatch: error: Batch job submission failed: {said}")
    assert error.message == f"Slurm refuses the job: sbatch: error: Batch job submission failed: {said}"
    assert error.advice is not None and error.advice.startswith(advice)


def test_a_refusal_that_bench_does_not_know_is_passed_on_without_advice() -> None:
    error = refused_by_sbatch("sbatch: error: something else")
    assert (error.message, error.advice) == ("Slurm refuses the job: sbatch: error: something else", None)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("PartitionTimeLimit", "--time asks for more minutes"),
        ("PartitionNodeLimit", "the partition has fewer nodes"),
        ("PartitionConfig", "the partition does not take this job"),
        ("PartitionDown", "the partition starts no jobs"),
        ("PartitionInactive", "the partition starts no jobs"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "a node that was asked for is down"),
        ("(Nodes required for job are DOWN, DRAINED)", "nodes that were asked for are down"),
        ("BadConstraints", "no nodes have these --constraint"),
        ("AssocGrpGRES", "a limit of the account"),
        ("QOSMaxWallDurationPerJobLimit", "a limit of the QOS"),
        ("InvalidAccount", "--account names one that may not be used here"),
        ("InvalidQOS", "--sbatch=--qos names one that may not be used here"),
        ("AccountNotAllowed", "--account names one that may not use this partition"),
        ("JobHeldUser", "somebody holds the job"),
        ("job requeued in held state", "its node failed it"),
        ("launch failed requeued held", "a prolog or a node failed it"),
        ("DependencyNeverSatisfied", "--sbatch=--dependency names a job"),
    ],
)
def test_a_reason_that_no_waiting_helps_against_comes_with_what_to_change(reason: str, advice: str) -> None:
    assert waiting_text(reason).startswith(f"{reason} ({advice}")
    assert waiting_text(reason).endswith(")")


@pytest.mark.parametrize("reason", ["Resources", "Priority", "BeginTime", ""])
def test_a_reason_that_passes_stands_alone(reason: str) -> None:
    assert waiting_text(reason) == reason


@pytest.mark.parametrize("option", ["--qos=high", "--nodelist=n3", "-wn3", "--mem=8G", "--comment=--array=1"])
def test_any_other_option_is_passed_on(option: str) -> None:
    assert Slurm(options=(option,)).options == (option,)


def test_pushes_to_other_nodes_are_of_other_runs() -> None:
    """In a loop over nodes, each push would otherwise attach to the first one's run."""
    first, second = (Slurm(partition="gpu", options=(f"--nodelist=n{n}",)) for n in (1, 2))
    assert first.where == "--partition=gpu --nodelist=n1"
    assert second.where == "--partition=gpu --nodelist=n2"
    assert Slurm(minutes=10).where == Slurm(minutes=90).where == ""
    other = Slurm(constraint="ib", gpus="h100:8", options=("--qos=b", "--mem=1"))
    assert other.where == "--constraint=ib --gpus-per-node=h100:8 --mem=1 --qos=b"
