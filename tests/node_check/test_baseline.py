"""`bench check --baseline` and `--disk` as a user sees them, and the memory errors in the history."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from bench.base.strict_json import canonical_json, to_json
from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.node_check.check_results import CheckContents
from bench.node_check.judging.standards import CORRECTED_ERRORS, COUNTED_AT
from bench.node_check.recompute_any import recompute
from bench.runner.check.check_index import FILE_NAME, IndexedCheck, add
from bench.runner.check.history import past_of, read
from tests.node_check.test_command import _home, machine

assert _home

PASSIVE = ("check", "--level", "passive", "--json")
REPOSITORY = Path(__file__).parents[2]
NEW_FIELDS = {"machine", "corrected_errors"}
NO_CHECK = REPOSITORY / "results/nine-h200"


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the results of the check that was just made; earlier output is dropped."""
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def drift(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (f["subject"], f["verdict"], f["found"])
        for f in results["findings"]
        if f["check"] == "drift" and f["verdict"] != "not-run"
    ]


def test_a_machine_is_compared_with_an_earlier_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    assert main([*PASSIVE]) == 0
    first = found(capsys)
    assert drift(first["results"]) == [] and "baseline" not in first["results"]
    assert main([*PASSIVE, "--baseline", first["bundle"]]) == 0
    ((subject, verdict, words),) = drift(found(capsys)["results"])
    assert (subject, verdict) == ("the node", "pass")
    assert words.endswith("facts as in the baseline")
    machine(monkeypatch, gpus={"1": {"VbiosVersion": "96.00.00.00.99"}})
    assert main([*PASSIVE, "--baseline", first["bundle"]]) == 0
    changed = found(capsys)
    ((subject, verdict, words),) = drift(changed["results"])
    assert (subject, verdict) == ("GPU 1 VBIOS", "warn")
    assert words.startswith("is 96.00.00.00.99, was ")
    assert changed["results"]["baseline"]["run"] == first["results"]["run"]["id"]
    contents = verify_bundle(Path(changed["bundle"]), recompute).contents
    assert isinstance(contents, CheckContents) and contents.results.baseline is not None


def test_a_folder_gives_its_newest_check_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    Path("out").mkdir()
    assert main([*PASSIVE, "--baseline", "out"]) == 0
    assert "no check of this machine in out yet" in capsys.readouterr().err
    machine(monkeypatch, gpus={"1": {"VbiosVersion": "96.00.00.00.99"}})
    for told in (1, 0):  # once: the next check has this one as its baseline
        assert main([*PASSIVE, "--baseline", "out"]) == 0
        warned = [one for one in drift(found(capsys)["results"]) if one[1] == "warn"]
        assert len(warned) == told
        newest = max(Path("out").glob("*.tar"), key=lambda path: path.stat().st_mtime)
        os.utime(newest, (2e9 - told, 2e9 - told))


def test_a_baseline_that_cannot_be_used_is_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    assert main([*PASSIVE]) == 0
    bundle = Path(found(capsys)["bundle"])
    forged = Path("forged.tar")
    with tarfile.open(bundle) as old, tarfile.open(forged, "w") as new:
        for member in old:
            data = old.extractfile(member)
            assert data is not None
            content = data.read()
            if member.name == "samples.jsonl":
                content = content.replace(b'"release":"', b'"release":"9')
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    older = next((REPOSITORY / "results/node-check-h200").glob("*.tar"))
    trained = next(NO_CHECK.glob("*.tar"))
    for baseline, words in (
        (forged, "--baseline does not verify"),
        (Path("nowhere.tar"), "--baseline does not verify"),
        (older, "has no facts of its machine"),
        (trained, "is not a node check"),
    ):
        assert main(["check", "--level", "passive", "--out", "other", "--baseline", str(baseline)]) == 2
        assert words in capsys.readouterr().err
    assert not Path("other").exists()


def test_disks_are_measured_where_the_user_named_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a disk").mkdir()
    manifest = {"schema": "bench/node-check/v1", "level": "quick", "disks": [str(Path("a disk").absolute())],
                "skip": ["disk", "host-memory", "matmul", "own-card", "memory", "agreement", "soak"],
                "levels": {"quick": {"minutes": 2, "warm_seconds": 0, "seconds": 0.05, "soak_seconds": 1}},
                }  # fmt: skip
    Path("m.json").write_text(json.dumps(manifest))
    main(["check", "m.json", "--device", "cpu", "--json", "--disk", "."])
    figures = [f["figure"] for f in found(capsys)["results"]["findings"] if f["check"] == "file-systems"]
    here = Path.cwd()
    assert figures == [
        f"disk {folder} {kind}"
        for folder in (here / "a disk", here)
        for kind in ("write", "read", "random read")
    ]
    assert list(Path("a disk").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--disk", "nowhere"], "--disk nowhere: no file can be written in this folder"),
        (["--disk", "."] * 5, "at most 4 file systems"),
        (["--disk", "a\x1bb"], "not a printable name"),
        (["--level", "passive", "--disk", "."], "the level passive measures no file system"),
        (["--engine", "docker", "--disk", "."], "the container does not see"),
        (["--engine", "docker", "--baseline", "."], "the container does not see"),
    ],
)
def test_options_that_cannot_be_heeded_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    machine(monkeypatch)
    assert main(["check", *words]) == 2
    assert said in capsys.readouterr().err


def entry(
    number: int, ended_at: float, errors: int | None, machine: str = "m", **changes: Any
) -> IndexedCheck:
    facts: dict[str, Any] = {
        "verdict": "pass",
        "finding": "",
        "simulated": False,
        "remapped_rows": {},
        "figures": {},
    }
    return IndexedCheck(
        f"{number}.tar", f"run{number}", ended_at, "passive", machine=machine, corrected_errors=errors,
        **facts | changes,
    )  # fmt: skip


def test_memory_errors_are_compared_with_those_of_a_day_before() -> None:
    day = 86_400.0
    checks = [entry(number, 1.79e9 + number * day / 4, 10 * number) for number in range(9)]
    past = past_of([*checks, entry(9, 1.8e9, 7, "other"), entry(10, 1.9e9, None), entry(11, 1.9e9, 5, "")])
    assert past["m"].counters == {CORRECTED_ERRORS: 40, COUNTED_AT: int(1.79e9 + day)}
    assert past["other"].counters[CORRECTED_ERRORS] == 7
    assert "" not in past
    assert past_of([entry(1, 1.79e9, 3, simulated=True)]) == {}


def test_lines_of_an_older_index_are_still_read(tmp_path: Path) -> None:
    older = {key: value for key, value in to_json(entry(1, 1.79e9, 3)).items() if key not in NEW_FIELDS}
    body = canonical_json(older | {"figures": {"GPU-a": {"memory": 3e12}}, "remapped_rows": {"GPU-a": 0}})[
        :-1
    ]
    (tmp_path / FILE_NAME).write_bytes(body + b',"crc32":"%08x"}\n' % crc32(body))
    add(tmp_path, [entry(2, 1.79e9, 3)])
    past = read([tmp_path]).past
    assert past["GPU-a"].figures == {"memory": (3e12,)}
    assert past["m"].counters[CORRECTED_ERRORS] == 3
