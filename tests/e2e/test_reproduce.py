"""A run is reproduced: all figures that do not depend on the momentary speed of the machine must be equal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.published_row import BRIEFLY, TIMING, published_rows
from tests.e2e.pushing import inside
from tests.warm import quick_python

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def bench(
    *arguments: str | Path, folder: Path, program: tuple[str, str] = ("-m", "bench")
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config")}
    return subprocess.run(
        [quick_python(), *program, *map(str, arguments)],
        check=False, cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_a_run_is_reproduced_here(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    document = {
        "schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"], "methods": ["naive", ["checkpointing"]],
        "micro_batch": 16, "seed": 5, "timing": TIMING,
    }  # fmt: skip
    manifest.write_text(json.dumps(document))
    assert bench("run", manifest, "--device", "cpu", folder=tmp_path).returncode == 0
    (first,) = (tmp_path / "out").glob("*.tar")
    done = bench("reproduce", first, "--device", "cpu", "-o", "again", "--json", folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # the seconds depend on the other work of this machine
    found = json.loads(done.stdout)
    assert found["missing"] == []
    assert [one["label"] for one in found["compared"]] == ["naive", "checkpointing"]
    for one in found["compared"]:
        verdicts = {figure["name"]: figure["verdict"] for figure in one["figures"]}
        assert verdicts["first losses"] == "reproduced"
        assert "step seconds" in verdicts
        assert not [reason for reason in one["reasons"] if "torch" in reason]
    (again,) = (tmp_path / "again").glob("*.tar")
    assert bench("verify", again, folder=tmp_path).returncode == 0


def test_a_published_row_is_measured_here(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(published_rows("tiny")))
    words = ("--published", "tiny", "--published-in", "rows.json", "--device", "cpu", "-o", "out", "--json")
    done = bench("reproduce", *words, folder=tmp_path, program=("-c", BRIEFLY))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reached"]
    assert "checkpointing" in found["setting"]
    assert found["differences"][0] == "card: none here, NVIDIA H200 there"
    (run,) = (tmp_path / "out").glob("*.tar")
    assert inside(run, "manifest.json")["timing"] == TIMING
    assert bench("verify", run, folder=tmp_path).returncode == 0
