"""Bundles that a reviewer forged with tools of his own: each is refused, or told apart from honest ones.

tests/vectors/forged_bundles.tar.xz has them as they were made in November 2026 against an earlier bench,
which took nearly all of them without a word. They are kept because no code of bench has written them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import bench
from bench.base.errors import VerificationFailed
from bench.cli.main import main
from bench.library.verify import CheckedBundle
from bench.node_check.check_results import CheckContents
from release.archives import extract_all

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "vectors" / "forged_bundles.tar.xz"
HONEST = ROOT / "results" / "proof-h200" / "pythia-160m.tar"
FRIEND = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEOnLnFEAXYt9mtowm373yaCquyfJHTspGE+QkoPuv08 friend\n"
PASSES = "a step of trial 37847c3eb4b925eb was timed over"
ASCII = "drivers write names in ASCII, without spare blanks"
SURROGATE = "a text holds half of a surrogate pair"
NO_ITERABLE = "the results or the readings make no sense: 'int' object is not iterable"
NO_TIME = "a time outside of the years 1970 to 9999"

REFUSED = {
    "606": NO_ITERABLE,
    "899": NO_TIME,
    "A_cyrillic": ASCII,
    "A_trailing_space": ASCII,
    "B_phantom_second_gpu": "15,244 TFLOP/s; the vendor's peak of an NVIDIA H200 is 989",
    "C_cpu_claims": "15,243,799 TFLOP/s; the most that 16 cores can do is 80",
    "J_neg": f"{PASSES} 132 passes, a step of its recipe has 32",
    "J_operator_level": f"{PASSES} 33 passes, a step of its recipe has 32",
    "J_subtle": f"{PASSES} 33 passes, a step of its recipe has 32",
    "O_invented_proof": "is 7 steps in 32 s; the manifest asks for 3 steps and 3 minutes",
    "P_fast": "matmul-bf16 of GPU 0 is 33,020 TFLOP/s; the vendor's peak of an NVIDIA H200 is 989",
    "R_automap": "762 TFLOP/s; the most that 16 cores can do is 80",
    "SH_confused": "unknown field 'zz'",
    "SU_check": SURROGATE,
    "SU_model": SURROGATE,
    "SU_node": SURROGATE,
    "T_check_1e300": NO_TIME,
    "T_check_figures": NO_ITERABLE,
    "T_train_1e17": NO_TIME,
    "V_ten_TiB_on_one_card": "used 10,240.0 GiB of memory; its device has 140.4",
    "W_copy_with_a_blank": "is not written as bench writes it",
}
NO_CLOCK = "a GPU reported neither clock nor power while it was timed: its speed is taken on trust"
OWN_CLOCK = "by its own clock it ran at other times than"
ON_TRUST = {  # what each is taken on trust for; some have more than one reason
    "1469": 'this version of bench has no method "gelugelu": its operations are taken on trust',
    "D_displaces2": NO_CLOCK,
    "EX": "no vendor's peak is known of",
    "TT_1970": OWN_CLOCK,
    "TT_2096": OWN_CLOCK,
    "U_unknown_method": 'this version of bench has no method "warp-drive": its operations are taken on trust',
    "X_csv_eq": "no vendor's peak is known of",
    "X_html": "no vendor's peak is known of",
}
OTHER_SAMPLES = {"control"}  # those of an honest run: a copy, which is named as one
CHECKS = {  # node checks, with what the shipped profile makes of them
    "E_fail_by_friend": "fail",
    "E_pass_by_stranger": "warn",  # it is dated 2096
    "Q_slow_own_profile": "fail",
    "Q_slow_shipped_profile": "fail",
}


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged")
    with tarfile.open(ARCHIVE) as tar:
        extract_all(tar, folder)
    return folder


def checked(path: Path) -> CheckedBundle:
    (found,) = bench.verify(path)
    return found


def test_every_forged_bundle_has_its_verdict_below(forged: Path) -> None:
    named = [*REFUSED, *ON_TRUST, *OTHER_SAMPLES, *CHECKS]
    assert sorted(named) == sorted(path.stem for path in forged.iterdir())


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_it_is_refused(forged: Path, name: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = forged / f"{name}.tar"
    found = checked(path)
    assert isinstance(found.refusal, VerificationFailed)
    assert reason in str(found.refusal)
    assert main(["verify", str(path)]) == 4
    assert reason in capsys.readouterr().err


def test_a_refusal_in_json_says_where_and_why(forged: Path) -> None:
    path = forged / "W_copy_with_a_blank.tar"
    assert checked(path).to_json() == {
        "path": str(path),
        "valid": False,
        "where": "samples.jsonl: line 1",
        "reason": "is not written as bench writes it",
        "exit_code": 4,
    }


@pytest.mark.parametrize("command", ["verify", "show", "export", "reproduce", "compare"])
def test_no_command_goes_on_with_a_refused_bundle(
    forged: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Callable[[str], list[str]]] = {
        "export": lambda path: [path, "--to", "script", str(tmp_path / Path(path).stem)],
        "reproduce": lambda path: [str(HONEST), "--with", path],
    }
    for name in REFUSED:
        path = str(forged / f"{name}.tar")
        assert main([command, *more.get(command, lambda path: [path])(path)]) == 4, name
        out, err = capsys.readouterr()
        assert "pythia-160m  " not in out and f"{name}.tar" in out + err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "reason"), ON_TRUST.items())
def test_it_is_taken_on_trust_and_never_ranked_beside_an_honest_one(
    forged: Path, name: str, reason: str
) -> None:
    path = forged / f"{name}.tar"
    found = checked(path)
    assert found.verdict is not None
    assert any(reason in line for line in found.verdict.to_lines() if line.startswith("on trust "))
    for part in bench.compare([HONEST, path]).runs.parts:
        assert len({entry.row.path for entry in part.entries}) == 1, part.model


@pytest.mark.parametrize("name", sorted(OTHER_SAMPLES))
def test_samples_of_another_run_are_named_and_not_ranked(forged: Path, name: str) -> None:
    (part,) = bench.compare([HONEST, forged / f"{name}.tar"]).runs.parts
    assert [entry.row.path for entry in part.entries] == [str(HONEST)]
    assert [one.row.path for one in part.apart] == [str(forged / f"{name}.tar")]


@pytest.mark.parametrize(("name", "verdict"), CHECKS.items())
def test_a_node_check_is_judged_by_the_shipped_profile(forged: Path, name: str, verdict: str) -> None:
    found = checked(forged / f"{name}.tar")
    assert found.verdict is not None
    assert isinstance(found.verdict.contents, CheckContents)
    fleet = bench.compare(forged / f"{name}.tar").fleet
    assert fleet is not None
    assert [node.verdict for node in fleet.nodes] == [verdict]


def test_a_strangers_newer_pass_does_not_replace_a_trusted_failure(
    forged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One machine has two checks; a trusted key signed the one that failed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "friend.pub").write_text(FRIEND)
    assert main(["keys", "trust", str(tmp_path / "friend.pub"), "--as", "friend"]) == 0
    both = [str(forged / f"{name}.tar") for name in ("E_fail_by_friend", "E_pass_by_stranger")]
    assert main(["compare", *both]) == 1
    assert "1 WARN, 1 FAIL" in capsys.readouterr().out


def test_a_strangers_check_of_the_future_replaces_no_failure_of_a_reader_who_trusts_nobody(
    forged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [str(forged / f"{name}.tar") for name in ("E_fail_by_friend", "E_pass_by_stranger")]
    assert main(["compare", *both]) == 1
    found = capsys.readouterr().out
    assert "1 WARN, 1 FAIL" in found
    assert "says that it ran on 2096-10-02T07:06:40Z, which lies in the future" in " ".join(found.split())
    assert main(["verify", both[1]]) == 0
    line = "on trust   by its own clock it ran until 2096-10-02T07:07:40Z, which lies in the future"
    assert line in capsys.readouterr().out
