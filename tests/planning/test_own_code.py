"""The code of a manifest's own modules: read once, kept in the manifest, and covered by its digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.bundle.stated_manifest import read_stated
from bench.planning.manifest import load_manifest, parse_manifest, read_manifest
from bench.planning.own_code import MAX_BYTES, own_files

CODE = "from torch import nn\n\nclass Mine(nn.Linear):\n    pass  # π\n"
RECIPE = {"objective": "causal-lm", "batch_size": 8, "steps": 10, "precision": "fp32", "sequence_length": 8}


def manifest_in(folder: Path, module: Any = "mine.py:Mine", **more: Any) -> Path:
    architecture = {"module": module, "config": {"vocab_size": 100}, **more}
    entry = {"name": "mine", "architecture": architecture, "recipe": RECIPE}
    path = folder / "m.json"
    path.write_text(json.dumps({"schema": "bench/manifest/v1", "models": [entry]}))
    return path


def reason(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load_manifest(path)
    return str(caught.value)


def test_the_manifest_holds_the_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (model,) = load_manifest(manifest_in(tmp_path)).models
    assert "\n".join(model.architecture["code"]) == CODE


def test_other_code_is_another_manifest(tmp_path: Path) -> None:
    digests = set()
    for code in (CODE, CODE.replace("π", "pi")):
        (tmp_path / "mine.py").write_text(code)
        digests.add(load_manifest(manifest_in(tmp_path)).digest)
    assert len(digests) == 2


def test_a_manifest_with_code_is_read_without_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    whole = load_manifest(manifest_in(tmp_path)).data
    (tmp_path / "mine.py").unlink()
    (tmp_path / "whole.json").write_bytes(whole)
    assert load_manifest(tmp_path / "whole.json").data == whole


def test_a_manifest_without_modules_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"schema":  "bench/manifest/v1", "models": ["pythia-1b"], "name": "module"}')
    assert read_manifest(path) == path.read_bytes()


def test_line_ends_of_windows_are_those_of_unix(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(CODE.replace("\n", "\r\n").encode())
    (model,) = load_manifest(manifest_in(tmp_path)).models
    assert "\n".join(model.architecture["code"]) == CODE


def test_the_plan_names_the_code_that_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (remark,) = load_manifest(manifest_in(tmp_path)).remarks
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    assert remark == f"/models/0/architecture/module: mine.py, sha256 {digest}, is run where models are built"


def test_reading_a_manifest_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{CODE}")
    whole = load_manifest(manifest_in(tmp_path))
    assert own_files(read_stated(whole.data).document) == ("mine.py",)
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_named_with_its_nearest(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    found = reason(manifest_in(tmp_path, "mein.py:Mine"))
    assert "/models/0/architecture/module" in found
    assert "mein.py: No such file or directory" in found and 'nearest: "mine.py"' in found


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("mine.py", b"\xff", "is not UTF-8 at byte 0"),
        ("mine.py", b"#" * (MAX_BYTES + 1), "is larger than"),
        ("mine.py/inner.txt", b"", "Is a directory"),
    ],
)
def test_a_file_that_is_no_code_is_refused(name: str, contents: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(contents)
    assert words in reason(manifest_in(tmp_path))


@pytest.mark.parametrize("module", ["mine.py", "mine:Mine", ":Mine", "mine.py:", "mine.py:a-b", 5, None, []])
def test_a_name_of_another_form_is_refused(module: Any, tmp_path: Path) -> None:
    assert "names no class" in reason(manifest_in(tmp_path, module))


@pytest.mark.parametrize("code", ["a text", [1], None, {}])
def test_code_that_is_no_list_of_lines_is_refused(code: Any, tmp_path: Path) -> None:
    assert "/models/0/architecture/code" in reason(manifest_in(tmp_path, code=code))


def test_a_line_of_code_has_no_line_break(tmp_path: Path) -> None:
    assert "a text of several lines" in reason(manifest_in(tmp_path, code=["a\nb"]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"config": 5}, "architecture/config +5 is not an object"),
        ({"config": {}}, "architecture/config/vocab_size +missing"),
        ({"config": {"vocab_size": "9"}}, 'architecture/config/vocab_size +"9" is not a number of tokens'),
        ({"batch": {}}, "architecture/batch +means nothing for causal-lm"),
    ],
)
def test_a_configuration_that_the_objective_cannot_use(
    more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    with pytest.raises(BadInput, match=words):
        load_manifest(manifest_in(tmp_path, **more))


@pytest.mark.parametrize(
    ("batch", "place"),
    [
        (None, "batch +missing"),
        ({}, "batch +{} names no tensor"),
        ({"x y": {"shape": [1], "elements": "numbers"}}, "batch/x y +"),
        ({"x": 5}, "batch/x +5 is not an object"),
        ({"x": {"shape": [0], "elements": "numbers"}}, "batch/x/shape"),
        ({"x": {"shape": [1 << 40], "elements": "numbers"}}, "batch/x/shape"),
        ({"x": {"shape": 3, "elements": "numbers"}}, "batch/x/shape"),
        ({"x": {"elements": "numbers"}}, "batch/x/shape"),
        ({"x": {"shape": [1], "elements": "numbrs"}}, 'batch/x/elements.*nearest: "numbers"'),
        ({"x": {"shape": [1]}}, "batch/x/elements +missing"),
        ({"x": {"shape": [1], "elements": "indices"}}, "batch/x/below"),
        ({"x": {"shape": [1], "elements": "indices", "below": 0}}, "batch/x/below"),
        ({"x": {"shape": [1], "elements": "numbers", "below": 9}}, "batch/x/below +no such field"),
    ],
)
def test_a_batch_of_another_form_is_refused(batch: Any, place: str) -> None:
    architecture = {"module": "mine.py:Mine", "code": ["pass"], "batch": batch}
    recipe = {"objective": "own-loss", "batch_size": 8, "steps": 10, "precision": "fp32"}
    document = {
        "schema": "bench/manifest/v1",
        "models": [{"name": "mine", "architecture": architecture, "recipe": recipe}],
    }
    with pytest.raises(BadInput, match=f"architecture/{place}"):
        parse_manifest(json.dumps(document).encode(), "m.json")
