"""The notebooks of docs/notebooks run, and their committed outputs are those of today's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.library.notebooks import FOLDER, CellFailed, as_text, with_outputs

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_the_outputs_that_are_committed(path: Path) -> None:
    """If they differ for a reason, `make notebooks` writes the new ones."""
    assert as_text(with_outputs(path)) == path.read_text(encoding="utf-8")


def test_the_notebook_calls_all_functions_that_need_no_gpu() -> None:
    sources = "".join(line for cell in cells(NOTEBOOKS[0]) for line in cell["source"])
    for name in ("plan", "predict", "verify", "compare"):
        assert f"bench.{name}(" in sources


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def notebook(path: Path, *sources: str) -> Path:
    code = [
        {
            "cell_type": "code",
            "source": source.splitlines(keepends=True),
            "outputs": [],
            "execution_count": None,
        }
        for source in sources
    ]
    path.write_text(json.dumps({"cells": code}), encoding="utf-8", newline="\n")
    return path


def test_cells_share_names_and_a_cell_shows_its_last_value(tmp_path: Path) -> None:
    document = with_outputs(notebook(tmp_path / "n.ipynb", "a = 20\nprint(a)", "a + 1", "None", "a;"))
    first, second, third, _ = (cell["outputs"] for cell in document["cells"])
    assert first == [{"name": "stdout", "output_type": "stream", "text": ["20\n"]}]
    assert second[0]["data"] == {"text/plain": ["21"]}
    assert third == []


def test_an_error_in_a_cell_names_the_cell(tmp_path: Path) -> None:
    path = notebook(tmp_path / "n.ipynb", "a = 1", "a / 0")
    with pytest.raises(CellFailed, match=r"n\.ipynb, cell 2: ZeroDivisionError: division by zero"):
        with_outputs(path)
