"""Commands of the operator run with bench's own dependencies alone: without torch, transformers and numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = ("torch", "transformers", "numpy", "peft", "timm", "deepspeed", "docker", "fabric", "pynvml")
BUNDLE = "results/proof-h200/pythia-1b.tar"
# A process in which these packages are not installed.
WITHOUT = f"""
import sys
from importlib import metadata
from bench.cli.main import main

found = metadata.version

def version(name):
    if name in {MISSING!r}:
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.version = version
sys.modules.update(dict.fromkeys({MISSING!r}))
sys.exit(main(sys.argv[1:]))
"""
ZOO = '{"schema": "bench/manifest/v1", "models": ["pythia-1b", "gpt2", "llama-3.2-1b", "whisper-small"]}'


@pytest.mark.parametrize(
    "command",
    [
        "plan {manifest} --gpu h200", "plan --list-models", "predict {manifest} --gpu h200,8xb200",
        f"verify {BUNDLE}", f"compare {BUNDLE} --estimate 8xh100", "prices h200", "paper",
    ],
)  # fmt: skip
def test_a_laptop_needs_no_torch(command: str, tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text(ZOO)
    words = command.format(manifest=manifest).split()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if words[0] == "predict":
        assert "not predicted" not in done.stdout
