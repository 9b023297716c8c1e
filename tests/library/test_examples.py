"""Every public function has an example in its docstring, and all examples give what they say."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("plan", "run", "verify", "compare", "predict")
# Its example starts processes that import torch.
SLOW = {"run"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder that has results and manifests, like a checkout."""
    for name in ("results", "manifests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path


def failures(text: str, name: str) -> str:
    """Run the examples in a text; return doctest's report about those that failed."""
    test = doctest.DocTestParser().get_doctest(text, {"bench": bench}, name, name, 0)
    assert test.examples, name
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FUNCTIONS]
)
def test_the_example_of_a_function_gives_what_it_says(name: str, folder: Path, quick_children: None) -> None:
    assert failures(inspect.getdoc(getattr(bench, name)) or "", name) == ""


def test_the_examples_of_the_documentation_give_what_they_say(folder: Path) -> None:
    assert failures((ROOT / "docs/library.md").read_text(encoding="utf-8"), "library.md") == ""


def test_an_example_that_is_wrong_is_noticed() -> None:
    assert "Expected:\n    3\nGot:\n    2" in failures(">>> 1 + 1\n3\n", "wrong")
