"""A stranger follows the three tasks of README, line by line, in an empty folder.

Only what a test cannot have is replaced: bench is installed already, the model is tiny and measured for
seconds, the node is simulated, and the rented machine's bundle is one of results/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.pushing import UNHURRIED
from tests.readme_tasks import tasks

ROOT = Path(__file__).parents[2]
RENTED = ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 16,
}  # fmt: skip
TIMING = {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1}
SHORT = {"methods": "naive", "timing": TIMING}

pytestmark = pytest.mark.e2e


class Stranger:
    """A person with a shell, README, and an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.command = folder, folder.parent / "bin/bench"
        self.command.parent.mkdir(exist_ok=True)
        self.calls('"$@"')
        self.environment = os.environ | {
            "PATH": f"{self.command.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def calls(self, arguments: str) -> None:
        """Let `bench` be this checkout's with these arguments, in which "$@" stands for what was typed."""
        self.command.write_text(f"#!/bin/sh\nexec {sys.executable} -m bench {arguments}\n", encoding="utf-8")
        self.command.chmod(0o755)

    def types(self, line: str) -> str:
        """Run a line as it is printed; return its output. It must succeed."""
        done = subprocess.run(
            ["bash", "-c", line], check=False, cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    folder = tmp_path / "stranger"
    folder.mkdir()
    return Stranger(folder)


def lines_of(question: str) -> list[str]:
    """Return the commands of a task without its first, which installs bench."""
    (commands,) = [task.commands for task in tasks() if question in task.question]
    assert commands[0].startswith("pip install")
    return [*commands[1:]]


def test_how_long_my_model_takes(stranger: Stranger) -> None:
    model = stranger.folder / "my-model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    init, plan, run, verify = lines_of("my model")
    assert f"  {plan}" in stranger.types(init).splitlines()
    manifest = stranger.folder / "mine.json"
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document | SHORT), encoding="utf-8")
    assert "my-model" in stranger.types(plan)
    assert "days" in stranger.types(run)
    assert "my-model" in stranger.types(verify)


def test_is_this_node_good(stranger: Stranger) -> None:
    """The level has more time than the two minutes of the shipped manifest, for a busy machine."""
    manifest = {"schema": "bench/node-check/v1", "levels": {"quick": UNHURRIED}}
    (stranger.folder / "check.json").write_text(json.dumps(manifest), encoding="utf-8")
    stranger.calls('"$@" check.json')
    machine = stranger.folder / "machine.json"
    machine.write_text('{"count": 1}', encoding="utf-8")
    stranger.environment["BENCH_FAKE_NVML"] = str(machine)
    (check,) = lines_of("node good")
    assert "SIMULATED" in stranger.types(check).splitlines()[-2]


def test_what_to_rent_for_a_deadline(stranger: Stranger) -> None:
    init, predict, rent, compare = lines_of("deadline")
    stranger.types(init)
    assert "8x H100 80GB HBM3" in stranger.types(predict)
    assert "sky launch" in stranger.types(rent)
    shutil.copy(RENTED, stranger.folder)
    assert "answer:" in stranger.types(compare)
