"""VS Code's JSON language service completes and explains a manifest that names its schema."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.base.shipped_data import MANIFEST_SCHEMA, read_data
from bench.cli.main import main
from bench.training.models import known_models
from tests.e2e.services import require
from tests.planning.test_schema import MANIFEST, walk

HERE = Path(__file__).parent / "editor"
MARK = "¶"  # in a text: where the cursor is
Ask = Callable[[str, str], Any]  # what is asked about a text: mistakes, hover, complete

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Yield a function that asks the editor about a manifest beside the schema that `bench init` writes."""
    folder = tmp_path_factory.mktemp("editor")
    require("node", "npm")
    for file in HERE.iterdir():
        shutil.copy(file, folder)
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
    assert main(["init", str(folder / "m.json"), "--model", "tiny-vit"]) == 0

    pipe, command = subprocess.PIPE, ["node", "ask.mjs", str(folder / "m.json")]
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, encoding="utf-8") as editor:
        questions, answers = editor.stdin, editor.stdout
        assert questions is not None and answers is not None

        def asked(text: str, what: str) -> Any:
            question = {"text": text.replace(MARK, ""), "at": text.find(MARK), "what": what}
            print(json.dumps(question), file=questions, flush=True)
            return json.loads(answers.readline())

        yield asked


def manifest(**fields: Any) -> str:
    return json.dumps({"$schema": "manifest-v1.schema.json", "schema": "bench/manifest/v1", **fields})


def resolved(field: Mapping[str, Any]) -> Mapping[str, Any]:
    named: Mapping[str, Any] = MANIFEST["$defs"].get(field.get("$ref", "").rpartition("/")[2], field)
    return named


def unescaped(markdown: str) -> str:
    return markdown.replace("\\", "")


def objects() -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], str | None]]:
    """Yield the path of each object of a manifest with fields, its schema, and its name if it has a kind."""
    for place in walk(MANIFEST):
        if place.schema.get("properties") and not place.schema["properties"].get("shape"):
            named = place.schema["properties"].get("name", {})
            yield place.path, place.schema, named.get("const") or (named.get("enum") or [None])[0]


def inside(path: tuple[str, ...], written: str) -> str:
    """Return a manifest whose object at `path` has this text between its braces."""
    text = f"{{{written}}}"
    for name in reversed(path):
        text = f"[{text}]" if name == "*" else f'{{"{name}": {text}}}'
    head = '"$schema": "manifest-v1.schema.json"'
    return f"{{{head}, {text[1:]}" if path or written else f"{{{head}, {MARK}}}"


OBJECTS = list(objects())


@pytest.mark.parametrize(
    ("path", "schema", "kind"), OBJECTS, ids=[".".join(o[0]) + f":{o[2]}" for o in OBJECTS]
)
def test_every_field_is_offered_with_its_explanation(
    path: tuple[str, ...], schema: Mapping[str, Any], kind: str | None, ask: Ask
) -> None:
    named = f'"name": "{kind}", ' if kind else ""
    offered = {
        one["label"]: one["documentation"] for one in ask(inside(path, f'{named}"{MARK}"'), "complete")
    }
    for name, field in schema["properties"].items():
        if (name != "name" or not kind) and (path or name != "$schema"):
            assert offered[name] == resolved(field)["description"]


@pytest.mark.parametrize("name", [name for name in MANIFEST["properties"] if name != "$schema"])
def test_the_cursor_on_a_field_shows_what_it_is(name: str, ask: Ask) -> None:
    field = MANIFEST["properties"][name]
    value = json.dumps(field.get("const", field.get("examples", [None])[0]))
    text = f'{{"$schema": "manifest-v1.schema.json", "{MARK}{name}": {value}}}'
    known = [place.schema["description"] for place in walk(MANIFEST) if place.path == (name,)]
    assert unescaped("".join(ask(text, "hover"))) in known  # the field's own, or that of the form it has


def test_models_are_offered_by_name(ask: Ask) -> None:
    text = f'{{"$schema": "manifest-v1.schema.json", "models": ["{MARK}"]}}'
    offered = {one["label"].strip('"') for one in ask(text, "complete")}
    assert {*known_models()} <= offered


def test_a_misspelt_field_and_a_wrong_value_are_marked(ask: Ask) -> None:
    wrong = manifest(models=[{"name": "pythia-1b", "recipe": {"batchsize": 5, "precision": "bf61"}}], gpu=1)
    said = " ".join(ask(wrong, "mistakes"))
    assert "batchsize" in said
    assert "gpu" in said
    assert '"bf16"' in said


@pytest.mark.parametrize("name", ["hour", "paper", "quickstart", "prove-tiny", "lora"])
def test_a_shipped_manifest_has_no_marks(name: str, ask: Ask) -> None:
    text = (Path(__file__).parents[2] / f"manifests/{name}.json").read_text(encoding="utf-8")
    assert ask(manifest(**json.loads(text)), "mistakes") == []


def test_the_schema_of_the_test_is_the_shipped_one() -> None:
    assert read_data(MANIFEST_SCHEMA) == MANIFEST
