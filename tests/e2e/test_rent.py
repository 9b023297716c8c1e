"""The files of bench rent, read by SkyPilot's and dstack's own parsers, each in a separate environment."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import gpu_models
from bench.push.rent import find_tool
from tests.push.test_rent import SCHEMAS, rental

pytestmark = pytest.mark.e2e

RELEASES = {"skypilot": "skypilot==0.14.1", "dstack": "dstack==0.22.5"}  # 460 and 160 MB installed
READER = Path(__file__).with_name("rental_schemas.py")
TEXTS = {"description", "title", "examples", "default"}  # of a schema; none of its rules


@pytest.mark.parametrize("tool", RELEASES)
def test_the_tools_own_parser_reads_every_file(tool: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, RELEASES[tool]], check=True)
    shown = subprocess.run([python, READER, tool], capture_output=True, text=True, check=True)
    assert rules(json.loads(shown.stdout)) == json.loads(SCHEMAS.read_text())[tool]
    for name in ("bench-code.tar.gz", "manifest.json"):
        (tmp_path / name).touch()

    def parsed(*texts: str) -> subprocess.CompletedProcess[str]:
        """Let one process, which imports the program once, read all files."""
        files = [tmp_path / f"{number}-{find_tool(tool).file_name}" for number, _ in enumerate(texts)]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        command = [python, READER, tool, *files]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    cards = [gpu for gpu in gpu_models() if gpu.name.startswith("NVIDIA H")]
    texts = [
        find_tool(tool).text(
            rental(gpu=gpu, cloud=(None, "aws", "runpod/US")[number % 3], spot=number % 2 == 0)
        )
        for number, gpu in enumerate(cards)
    ]
    done = parsed(*texts)
    assert done.returncode == 0, done.stderr
    assert parsed(texts[-1].replace("spot", "spott")).returncode != 0


def rules(schema: object) -> object:
    """Return a schema without its texts."""
    if isinstance(schema, dict):
        texts = {name for name in TEXTS & schema.keys() if not isinstance(schema[name], dict)}
        return {name: rules(value) for name, value in schema.items() if name not in texts}
    return [rules(each) for each in schema] if isinstance(schema, list) else schema
