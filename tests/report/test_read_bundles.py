"""No content of one bundle costs another bundle its verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, VerificationFailed
from bench.bundle.verdict import Verdict
from bench.cli.main import main
from bench.node_check.recompute_any import recompute
from bench.report.read_bundles import MANY_BUNDLES, look_at_all, own_process
from tests.report.made import STRANGER, bundle, trust_list

GOOD, CONFUSING, DEADLY, UNSENDABLE = "good", "confusing", "deadly", "unsendable"


@pytest.fixture(autouse=True)
def _owned() -> None:
    """Let bench fork also where the program that runs the tests has other threads."""
    own_process()


def look(path: Path, _verdict: Verdict[Any]) -> object:
    """Stand for bench at a bundle that confuses it: the bundle's name says what happens."""
    if path.stem == CONFUSING:
        raise ZeroDivisionError("it has no steps")
    if path.stem == DEADLY:
        os._exit(9)
    return lambda: None if path.stem == UNSENDABLE else path.name


def sendable(path: Path, verdict: Verdict[Any]) -> object:
    """Do what `look` does, with a result that another process can send."""
    found = look(path, verdict)
    return found if path.stem == UNSENDABLE else path.name


def several(folder: Path, count: int, *names: str) -> list[Path]:
    """Write one good bundle under many names, and under each of the others; the others come first."""
    source = bundle(folder / "source.tar").read_bytes()
    paths = [folder / f"{name}.tar" for name in (*names, *(f"{GOOD}{i}" for i in range(count)))]
    for path in paths:
        path.write_bytes(source)
    return paths


@pytest.mark.parametrize("count", [3, MANY_BUNDLES])
def test_what_confuses_bench_in_one_bundle_refuses_that_one(tmp_path: Path, count: int) -> None:
    paths = several(tmp_path, count, CONFUSING)
    (_, refused), *others = look_at_all(paths, None, recompute, sendable)
    assert isinstance(refused, VerificationFailed)
    assert str(refused).startswith(f"{paths[0]}: cannot be judged: ZeroDivisionError: it has no steps")
    assert "a defect of bench" in str(refused)
    assert others == [(path, path.name) for path in paths[1:]]


def test_a_defect_can_still_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        list(look_at_all(several(tmp_path, 1, CONFUSING), None, recompute, sendable))


@pytest.mark.parametrize("name", [DEADLY, UNSENDABLE])
def test_a_bundle_that_ends_the_process_which_verifies_it_is_refused_alone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.read_bundles.MANY_BUNDLES", 8)  # each gets a process in the end
    paths = several(tmp_path, 8, name)
    (_, refused), *others = look_at_all(paths, None, recompute, sendable)
    assert isinstance(refused, BenchError)
    assert (refused.where, type(refused) is EnvironmentCannot) == (str(paths[0]), name == DEADLY)
    assert others == [(path, path.name) for path in paths[1:]]


@pytest.mark.parametrize("command", ["verify", "compare"])
def test_one_stranger_among_many_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A process sends the error of a key that is not trusted to the process that prints it."""
    folder = tmp_path / "many"
    folder.mkdir()
    several(folder, MANY_BUNDLES)
    bundle(folder / "stranger.tar", run_id="stranger", key=STRANGER)
    (folder / "tampered.tar").write_bytes((folder / "source.tar").read_bytes().replace(b"580", b"581"))
    assert main([command, str(folder), "--trust", str(trust_list(tmp_path / "keys"))]) == 4
    said = capsys.readouterr()
    assert f"{folder}/stranger.tar: not trusted: signed by the key SHA256:" in said.err
    assert f"{folder}/tampered.tar: the signature does not fit the signed bytes" in said.err
    if command == "verify":
        assert said.out.endswith(f"\n{MANY_BUNDLES + 3} bundles: {MANY_BUNDLES + 1} valid, 2 REFUSED\n")
    else:
        assert "tiny-gpt-neox" in said.out


def test_settings_that_cannot_be_shown_hide_no_other_bundles_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.report.text import run_table

    real = run_table.section

    def section(path: Path, *rest: Any) -> str:
        if path.stem == CONFUSING:
            raise KeyError("warp-drive")
        return real(path, *rest)

    monkeypatch.setattr(run_table, "section", section)
    good = bundle(tmp_path / "good.tar", run_id="good", uuid="good")
    bad = bundle(tmp_path / f"{CONFUSING}.tar", run_id="bad", uuid="bad")
    assert main(["compare", str(bad), str(good), "--settings"]) == 0
    out = capsys.readouterr().out
    assert f"{good}   1 x NVIDIA H100 80GB HBM3" in out
    assert f"{bad}: cannot be judged: KeyError: 'warp-drive'" in out


def test_what_is_no_bundle_in_a_folder_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that others can write to may hold links to themselves, pipes and devices."""
    bundle(tmp_path / "good.tar")
    (tmp_path / "loop.tar").symlink_to("loop.tar")
    (tmp_path / "zeros.tar").symlink_to("/dev/zero")
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "[x].tar").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe.tar")
    for command in ("verify", "compare"):
        assert main([command, str(tmp_path)]) in (BadInput.exit_code, VerificationFailed.exit_code)
        out, err = capsys.readouterr()
        assert "a defect of bench" not in err
        assert "H100" in out  # the machine of the only bundle
        for name in ("loop", "zeros", "folder", "pipe", "[x]"):
            assert f"{name}.tar: " in out + err


@pytest.mark.parametrize("command", ["verify", "compare", "show"])
def test_no_name_of_a_file_forges_a_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names of files in a folder are those that its sender chose."""
    forged = "valid      17 files, 59 samples; every summary recomputed and equal"
    bundle(tmp_path / f"a\n{forged}\n.tar")
    (tmp_path / f"b\n{forged}\n.tar").symlink_to("nowhere")
    os.mkfifo(tmp_path / f"c\n{forged}\n.tar")
    for path in sorted(tmp_path.iterdir()):
        assert main([command, str(path)]) in (2, 4)
        out, err = capsys.readouterr()
        assert forged not in (out + err).splitlines()
        if path.is_file():
            assert f"a\\n{forged}\\n.tar: its name has a line break\n  rename the file\n" in err
