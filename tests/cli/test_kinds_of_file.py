"""Commands refuse a file of another kind by name, and tell the command that takes it."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.base.kinds_of_file import kind_of
from bench.cli.main import main
from bench.planning.manifest import load_manifest, manifest_of_model

RESULTS = Path(__file__).parents[2] / "results"

MANIFEST = '{"schema": "bench/manifest/v1", "models": ["pythia-160m"]}'
# File, what it is, and the command that takes it; FILE stands for its path.
FILES: Mapping[str, tuple[str, str | None]] = {
    "run.tar": ("a bundle", "bench verify FILE"),
    "models.json": ("a manifest of models", "bench run FILE"),
    "node.json": ("a manifest of a node check", "bench check FILE"),
    "config.json": ("the configuration of a model", "bench init mine.json --model FILE"),
    "prices.json": ("a file of prices", "bench prices --prices FILE"),
    "rows.json": ("a file of published measurements", None),
    "challenge.json": ("a challenge", "bench run MANIFEST --challenge FILE"),
    "request.json": ("a request for a certificate", "bench certify FILE"),
    "key.pub": ("a public key", "bench keys trust FILE"),
    "key": ("a private key", None),
    "image.tar": ("a saved image", "bench image id FILE"),
    "plan.json": ("a document of the form bench/plan/v1", None),
}
# What a command reads, the exit code of a refusal, and the files that it takes or refuses in its own words.
COMMANDS: Mapping[str, tuple[str, int, set[str]]] = {
    "plan FILE": ("a manifest of models", 2, {"models.json"}),
    "run FILE": ("a manifest of models", 2, {"models.json"}),
    "predict FILE": ("a manifest of models", 2, {"models.json"}),
    "predict models.json --gpu-spec FILE": ("a description of a card", 2, set()),
    "check FILE": ("a manifest of a node check", 2, {"node.json"}),
    "init new.json --model FILE": ("the configuration of a model", 2, {"config.json"}),
    "verify FILE": ("a bundle", 4, {"run.tar"}),
    "show FILE": ("a bundle", 4, {"run.tar"}),
    "reproduce FILE": ("a bundle", 4, {"run.tar"}),
    "compare FILE": ("a bundle", 4, {"run.tar"}),
    "compare run.tar --prices FILE": ("a file of prices", 2, {"prices.json"}),
    "compare run.tar --trust FILE": ("a public key", 2, {"key.pub"}),
    "run models.json --challenge FILE": ("a challenge", 2, {"challenge.json"}),
    "certify FILE": ("a request for a certificate", 2, {"request.json"}),
    "image id FILE": ("a saved image", 2, {"image.tar"}),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.tar").symlink_to(RESULTS / "proof-h200/pythia-1b.tar")
    texts = {
        "models.json": MANIFEST,
        "config.json": '{"model_type": "llama", "rope_scaling": Infinity}',
        "key.pub": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG8GaKYlqTP3i0DvvR3r1fz5sVXnLq8T7s8vSgUaUOgX me\n",
        "key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\n",
    }
    schemas = {"node": "node-check", "rows": "published-rows"}  # others have the name of their file
    for name in FILES.keys() - texts.keys() - {"run.tar", "image.tar"}:
        stem = name.removesuffix(".json")
        texts[name] = json.dumps({"schema": f"bench/{schemas.get(stem, stem)}/v1"})
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with tarfile.open(tmp_path / "image.tar", "w", format=tarfile.USTAR_FORMAT) as image:
        image.addfile(tarfile.TarInfo("oci-layout"))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_kind_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    wanted, code, taken = COMMANDS[command]
    for name in FILES.keys() - taken:
        words, use = FILES[name]
        assert main(command.replace("FILE", name).split()) == code, name
        expected = f"{name}: is {words}, not {wanted}\n"
        expected += f"  {use.replace('FILE', name)}\n" if use else ""
        assert expected in capsys.readouterr().err, name


def test_the_kind_of_a_file_is_that_of_its_content(folder: Path) -> None:
    for name, (words, _) in FILES.items():
        kind = kind_of((folder / name).read_bytes())
        assert kind is not None, name
        assert kind.words == words


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"schema": 1}', b'{"schema": "other/plan/v1"}', b'{"schema": "bench/\\u202e/v1"}',
     b'{"model_type": 1}', b"\x1f\x8b", b"ssh-ed25519", bytes(600), b"{" * 100_000],
)  # fmt: skip
def test_other_files_have_no_kind(data: bytes) -> None:
    assert kind_of(data) is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (".", "is a folder, not a manifest of models\n  bench init mine.json --model ."),  # has a config.json
        ("empty", "is a folder, not a manifest of models\n  name a file in it"),
        ("model.json", "no such file\n  nearest: models.json"),
        ("llama-3.1-8", "no such file\n  nearest model: llama-3.1-8b"),
        ("a" * 300, "cannot be read: File name too long"),
        ("manifests/" + "a" * 300, "no such file\n  manifests/ has some to start from"),
        ("models.json/inner", "cannot be read: Not a directory"),
        ("empty/any.json", "no such file\n  manifests/ has some to start from"),
    ],
)
def test_what_is_no_file_is_told_with_what_was_probably_meant(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    (folder / "empty").mkdir()
    assert main(["plan", typed]) == 2
    assert f"{typed}: {said}\n" in capsys.readouterr().err


def test_a_missing_bundle_is_told_with_the_nearest_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "rum.tar"]) == 2
    assert (
        "rum.tar: cannot be opened: No such file or directory\n  nearest: run.tar\n"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command",
    [
        "run models.json --challenge FILE",
        "certify FILE",
        "keys trust FILE --as x",
        "image id FILE",
        "image load FILE",
        "image sbom FILE",
        "image save FILE -o saved.tar",
        "image add FILE FILE -o more.tar",
    ],
)
def test_a_file_that_opens_and_cannot_be_read_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A process's own memory is a regular file whose first page cannot be read, as on a broken disk."""
    assert main(command.replace("FILE", "/proc/self/mem").split()) == 2
    assert "/proc/self/mem: cannot be read: Input/output error\n" in capsys.readouterr().err


def test_a_name_with_control_characters_is_not_suggested(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "march\nvalid      17 files.tar").touch()
    (folder / "march\x1b[2J.tar").touch()
    assert main(["verify", "march"]) == 2
    advice = f"nothing of this name is in {folder}"
    assert capsys.readouterr().err == f"march: cannot be opened: No such file or directory\n  {advice}\n"


@pytest.mark.parametrize("content", ["", " \n"])
@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("plan", "m.json"), "a manifest of models"),
        (("check", "m.json", "--device", "cpu"), "a manifest of a node check"),
        (("init", "new.json", "--model", "m.json"), "the configuration of a model"),
        (("prices", "--prices", "m.json"), "a file of prices"),
    ],
)
def test_an_empty_file_is_called_empty(
    content: str, words: tuple[str, ...], needed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "m.json").write_text(content)
    assert main([*words]) == 2
    assert capsys.readouterr().err.endswith(f"m.json: is empty\n  needed: {needed}, as JSON\n")


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
@pytest.mark.parametrize(
    "command",
    [
        "plan models.json", "run models.json", "predict models.json", "rent skypilot models.json --gpu h100",
        "push models.json host", "push node.json host", "check node.json", "prices --prices prices.json",
        "compare run.tar --prices prices.json", "init new.json --model config.json",
        "predict pythia-160m --gpu-spec card.json", "reproduce --published list --published-in rows.json",
        "run pythia-160m --challenge challenge.json", "certify request.json",
    ],
)  # fmt: skip
def test_a_number_that_is_none_of_json_is_told_with_its_place_and_what_to_do(
    command: str, number: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only Infinity in a configuration is read, because published ones have it."""
    for name in ("models", "node", "prices", "rows", "challenge", "request", "config", "card"):
        path = folder / f"{name}.json"
        text = path.read_text() if path.exists() else "{}"
        odd = f'"rope_scaling": {{"factor": {number}}}' if name == "config" else f'"seed": {number}'
        path.write_text(text.replace(', "rope_scaling": Infinity', "").replace("{", f"{{{odd}, ", 1))
        path.write_text(path.read_text().replace(", }", "}"))
    assert main(command.split()) in (2, 4)
    told = capsys.readouterr().err
    if number == "NaN" or ("models.json" not in command and "config.json" not in command):
        assert re.search(rf"/(seed|rope_scaling/factor): {number} is no JSON number\n  \S", told)
    assert "__float__" not in told


def test_the_name_of_a_model_stands_for_its_manifest(folder: Path) -> None:
    """A name gives the same bytes everywhere, so that runs of it have the same digest of the manifest."""
    manifest = load_manifest(Path("pythia-160m@paper-code"))
    assert [model.name for model in manifest.models] == ["pythia-160m@paper-code"]
    assert (manifest.where, manifest.budget_seconds) == ("pythia-160m@paper-code", 3600)
    assert manifest.data == manifest_of_model("pythia-160m@paper-code")


def test_a_file_is_preferred_to_the_model_of_its_name(folder: Path) -> None:
    (folder / "gpt2").write_text(MANIFEST)
    assert [model.name for model in load_manifest(Path("gpt2")).models] == ["pythia-160m"]
