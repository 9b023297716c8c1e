"""Files that rent a machine for a manifest: what they say, and what they never have."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import gpu_models
from bench.base.names import RENTAL_TOOLS
from bench.cli.main import main
from bench.cli.rent import requirements
from bench.push.rent import find_tool
from bench.push.rent.rental import Rental, script

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "manifests/quickstart.json"
SCHEMAS = Path(__file__).with_name("rental_schemas.json")


def rental(**changes: Any) -> Rental:
    h100 = next(gpu for gpu in gpu_models() if gpu.name == "NVIDIA H100 80GB HBM3")
    usual: dict[str, Any] = {
        "name": "bench-1", "checks": False, "gpu": h100, "gpus": 8, "minutes": 60, "spot": False,
        "cloud": None, "requirements": ("torch>=2.10,<2.14", "rich"),
    }  # fmt: skip
    return Rental(**usual | changes)


def document(tool: str, made: Rental) -> dict[str, Any]:
    found = yaml.safe_load(find_tool(tool).text(made))
    assert isinstance(found, dict)
    return found


# --- the files ------------------------------------------------------------------------------------------


def test_skypilot_rents_what_was_asked_for_and_takes_it_down_when_the_time_is_over() -> None:
    made = document("skypilot", rental(spot=True, cloud="aws/us-east-1"))
    assert made["resources"] == {
        "infra": "aws/us-east-1",
        "accelerators": "H100:8",
        "use_spot": True,
        "autostop": {"idle_minutes": 60, "down": True, "wait_for": "none"},
    }
    assert made["run"] == script(rental())
    assert made["file_mounts"] == {
        "~/bench-code.tar.gz": "./bench-code.tar.gz",
        "~/manifest.json": "./manifest.json",
    }
    assert "setup" not in made, "it runs before SkyPilot sets the autostop"
    assert "infra" not in document("skypilot", rental())["resources"]


def test_dstack_rents_what_was_asked_for_and_ends_when_the_time_is_over() -> None:
    made = document("dstack", rental(cloud="aws/us-east-1", minutes=90))
    assert made["resources"] == {"gpu": {"name": ["H100"], "count": 8}}
    assert (made["backends"], made["regions"]) == (["aws"], ["us-east-1"])
    assert (made["max_duration"], made["idle_duration"], made["spot_policy"]) == ("90m", "0s", "on-demand")
    (command,) = made["commands"]
    assert command.startswith(script(rental(minutes=90)))
    assert "bench-fetched" in command.removeprefix(script(rental(minutes=90)))
    assert document("dstack", rental(spot=True))["spot_policy"] == "spot"


@pytest.mark.parametrize(
    ("name", "skypilot", "dstack"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB:8", {"name": ["A100"], "memory": "80GB", "count": 8}),
        ("NVIDIA A100-PCIE-40GB", "A100:8", {"name": ["A100"], "memory": "40GB", "count": 8}),
        ("NVIDIA H100 PCIe", "H100:8", {"name": ["H100"], "count": 8}),
        ("NVIDIA GeForce RTX 4090", "RTX4090:8", {"name": ["RTX4090"], "count": 8}),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada:8", {"name": ["RTX6000Ada"], "count": 8}),
        ("NVIDIA RTX A6000", "RTXA6000:8", {"name": ["A6000"], "count": 8}),
        ("NVIDIA B300 SXM6 AC", "B300:8", {"name": ["B300"], "count": 8}),
    ],
)
def test_each_tool_gets_the_card_by_its_own_name(name: str, skypilot: str, dstack: dict[str, Any]) -> None:
    made = rental(gpu=next(gpu for gpu in gpu_models() if gpu.name == name))
    assert document("skypilot", made)["resources"]["accelerators"] == skypilot
    assert document("dstack", made)["resources"]["gpu"] == dstack


@pytest.mark.parametrize("tool", RENTAL_TOOLS)
@pytest.mark.parametrize("checks", [False, True])
def test_every_file_fits_the_tools_own_schema(tool: str, checks: bool) -> None:
    """The excerpts are made by tests/e2e/rental_schemas.py from the releases that it names."""
    validator = Draft202012Validator(json.loads(SCHEMAS.read_text())[tool])
    for gpu in gpu_models():
        for cloud in (None, "aws", "runpod/US", "gcp/us-west4/us-west4-a"):
            made = rental(gpu=gpu, checks=checks, cloud=cloud, spot=checks)
            assert [*validator.iter_errors(document(tool, made))] == []
    spoilt = document(tool, rental()) | {"max_minutes": 60}
    assert [*validator.iter_errors(spoilt)] != []


@pytest.mark.parametrize("tool", RENTAL_TOOLS)
def test_the_commands_rent_fetch_and_give_back_the_machine_by_its_name(tool: str) -> None:
    commands = find_tool(tool).commands(rental(name="mine"))
    assert [*commands] == ["rent", "fetch", "give_back"]
    text = find_tool(tool).text(rental(name="mine"))
    for command in commands.values():
        assert f" {command}\n" in text
    assert find_tool(tool).file_name in commands["rent"]
    assert "mine" in commands["fetch"] and "mine" in commands["give_back"]


# --- what the machine does ------------------------------------------------------------------------------


def machine(folder: Path, made: Rental) -> subprocess.CompletedProcess[str]:
    """Run the script where uv, python and timeout are doubles that note how they were called."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "uv").write_text(
        f'#!/bin/sh\necho "uv $*" >>{folder}/calls\n[ "$1" = venv ] || exit 0\n'
        f'mkdir -p "$HOME/bench-env/bin" && cp {programs}/bench "$HOME/bench-env/bin/python"\n'
    )
    (programs / "bench").write_text(f'#!/bin/sh\necho "$PYTHONPATH $*" >>{folder}/calls\nexit 5\n')
    (programs / "timeout").write_text(
        f'#!/bin/sh\necho "timeout $1 $2" >>{folder}/calls\nshift 2\nexec "$@"\n'
    )
    for path in programs.iterdir():
        path.chmod(0o755)
    with tarfile.open(folder / "bench-code.tar.gz", "w:gz") as code:
        code.add(ROOT / "bench/__init__.py", "bench/__init__.py")
    environment = {"HOME": str(folder), "PATH": f"{programs}:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", script(made)], env=environment, capture_output=True, text=True, check=False
    )


def test_the_machine_installs_measures_within_its_time_and_keeps_a_partial_bundle(tmp_path: Path) -> None:
    done = machine(tmp_path, rental())
    assert (done.returncode, done.stdout) == (0, "bench ended with exit code 5\n"), done.stderr
    venv, install, limit, run = (tmp_path / "calls").read_text().splitlines()
    assert venv == f"uv venv --quiet --python 3.11 {tmp_path}/bench-env"
    assert install.endswith("--torch-backend=auto torch>=2.10,<2.14 rich")
    code, *words = run.split()
    assert code == f"{tmp_path}/bench-code" and (tmp_path / "bench-code/bench/__init__.py").exists()
    assert words[:4] == ["-m", "bench", "run", f"{tmp_path}/manifest.json"]
    budget = int(words[words.index("--budget") + 1].removesuffix("s"))
    assert 3200 < budget <= 3300, "an hour less the time to fetch the bundle"
    assert limit == f"timeout --signal=INT {budget + 150}"
    assert words[-2:] == ["--out", f"{tmp_path}/bench-out"]


def test_a_node_check_has_no_budget(tmp_path: Path) -> None:
    machine(tmp_path, rental(checks=True))
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "-m bench check" in last and "--budget" not in last


def test_a_failed_installation_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    uv = tmp_path / "programs/uv"
    uv.write_text("#!/bin/sh\nexit 2\n")
    uv.chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": f"{uv.parent}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script(rental())], env=environment, check=False)
    assert done.returncode == 2


# --- the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", RENTAL_TOOLS)
def test_the_command_prints_the_file_and_writes_all_that_it_names(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_TEST_TOKEN", "s3cret")
    words = ["rent", tool, str(QUICKSTART), "--gpu", "h100", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    printed = capsys.readouterr()
    path = tmp_path / "out" / find_tool(tool).file_name
    assert path.read_text() == printed.out
    assert str(path) in printed.err
    assert (tmp_path / "out/manifest.json").read_bytes() == QUICKSTART.read_bytes()
    with tarfile.open(tmp_path / "out/bench-code.tar.gz") as code:
        assert "bench/__main__.py" in code.getnames()
    assert "s3cret" not in printed.out and str(Path.home()) not in printed.out
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["schema"], made["file"]) == ("bench/rent/v1", str(path))
    assert {*made["commands"]} == {"rent", "fetch", "give_back"}


def test_the_packages_are_those_of_a_run_on_this_installation() -> None:
    names = {re.split(r"[\[<>=]", package)[0] for package in requirements()}
    assert {"torch", "transformers", "cryptography", "jsonschema", "peft"} <= names
    assert not names & {"pytest", "deepspeed", "fabric"}


CHECK = ROOT / "manifests/node-check.json"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "h100", "--minutes", "10"], "--minutes 10 is too short"),
        (["--gpu", "h1000"], "--gpu h1000: unknown GPU"),
        (["--gpu", "mi300x"], "bench does not run on AMD Instinct MI300X OAM"),
        (["--gpu", "h100", "--gpus", "0"], "whole number of at least 1"),
        (["--gpu", "h100", "--cloud", "aws:key=secret"], "--cloud aws:key=secret"),
        (["--gpu", "h100", "--name", "Mine; rm -rf"], "--name Mine; rm -rf"),
        ([], "--gpu"),
    ],
)
def test_what_no_file_can_say_is_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rent", "skypilot", str(CHECK), *words, "-o", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_manifests_that_need_what_a_rented_machine_lacks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "m.json"
    for extra, told in (
        ({"models": [{"name": "tiny-vit", "data": "/mnt/pictures"}]}, "the manifest reads /mnt/pictures"),
        ({"models": ["tiny-vit"], "environment": "sha256:" + "a" * 64}, "the manifest asks for sha256:aaa"),
        ({"models": ["tiny-vit"], "gpus": 4}, "--gpus 2: the manifest asks for 4"),
    ):
        manifest.write_text(json.dumps({"schema": "bench/manifest/v1"} | extra))
        words = ["rent", "dstack", str(manifest), "--gpu", "h100", "--gpus", "2", "-o", str(tmp_path / "out")]
        assert main(words) == 2
        assert told in capsys.readouterr().err


# --- limits, and the whole text -------------------------------------------------------------------------


NAMES = "begin with a letter; 2 to 40 lower-case letters, digits and hyphens"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "ab"},
        {"name": "a" + "9" * 39},
        {"name": "a-1"},
        {"minutes": 15},
        {"cloud": "aws"},
        {"cloud": "a" * 32 + "/" + "B" * 32 + "/" + "c_1-" * 8},
    ],
)
def test_what_is_just_allowed_is_accepted(changes: dict[str, Any]) -> None:
    rental(**changes).check()


@pytest.mark.parametrize(
    ("changes", "told", "advice"),
    [
        *[
            ({"name": name}, f"--name {name}", NAMES)
            for name in ("a", "", "1a", "-a", "aB", "a_b", "ab\n", "a" * 41)
        ],
        *[
            ({"cloud": cloud}, f"--cloud {cloud}", "CLOUD or CLOUD/REGION, such as aws/us-east-1")
            for cloud in ("", "AWS", "aws/", "aws/a/b/c", "a" * 33, "aws/" + "b" * 33, "aws\n")
        ],
        ({"minutes": 14}, "--minutes 14 is too short", "15 at least: torch has to be installed first"),
    ],
)  # fmt: skip
def test_what_is_just_not_allowed_is_refused(changes: dict[str, Any], told: str, advice: str) -> None:
    with pytest.raises(BadInput) as refused:
        rental(**changes).check()
    assert (refused.value.message, refused.value.advice) == (told, advice)


def test_a_run_ends_five_minutes_before_the_machine_is_given_back() -> None:
    text = script(rental(minutes=20))
    assert 'left=$(( $(cat "$HOME/bench-began") + 900 - $(date +%s) ))\n' in text
    assert 'timeout --signal=INT "$(( left + 150 ))" ' in text
    assert "'torch>=2.10,<2.14' 'rich'\n" in text


def test_the_head_says_which_machine_for_how_long_and_the_commands() -> None:
    assert (
        find_tool("skypilot")
        .text(rental(name="mine", gpus=2, minutes=45))
        .startswith(
            """\
# SkyPilot: 2 x NVIDIA H100 80GB HBM3, 45 min at most, given back by itself then. In this file's folder:
#
#   rent:      sky launch --yes --cluster mine bench.sky.yaml
#   fetch:     rsync -a --include='*.tar' --exclude='*' mine:bench-out/ .
#   give back: sky down --yes mine
#
# The bundle is lost with the machine: fetch it before the time is over.
"""
        )
    )
    assert (
        find_tool("dstack")
        .text(rental(name="mine"))
        .startswith(
            """\
# dstack: 8 x NVIDIA H100 80GB HBM3, 60 min at most, given back by itself then. In this file's folder:
#
#   rent:      dstack apply --yes --file bench.dstack.yml
#   fetch:     scp 'mine:bench-out/*.tar' . && ssh mine touch bench-fetched
#   give back: dstack stop --yes mine
#
"""
        )
    )


@pytest.mark.parametrize(
    ("cloud", "said"),
    [
        (None, {}),
        ("aws", {"backends": ["aws"]}),
        ("aws/us-east-1", {"backends": ["aws"], "regions": ["us-east-1"]}),
        (
            "gcp/us-west4/us-west4-a",
            {"backends": ["gcp"], "regions": ["us-west4"], "availability_zones": ["us-west4-a"]},
        ),
    ],
)
def test_dstack_is_told_no_more_about_the_place_than_was_asked_for(
    cloud: str | None, said: dict[str, list[str]]
) -> None:
    made = document("dstack", rental(cloud=cloud))
    places = ("backends", "regions", "availability_zones")
    assert {place: made[place] for place in places if place in made} == said


def test_dstack_carries_the_code_and_the_manifest_home_and_waits_for_the_fetch() -> None:
    made = document("dstack", rental())
    assert made["files"] == [
        {"local_path": "bench-code.tar.gz", "path": "~/bench-code.tar.gz"},
        {"local_path": "manifest.json", "path": "~/manifest.json"},
    ]
    assert (made["type"], made["name"], made["creation_policy"]) == ("task", "bench-1", "reuse-or-create")
    assert made["commands"][0].endswith('until [ -e "$HOME/bench-fetched" ]; do sleep 5; done\n')
