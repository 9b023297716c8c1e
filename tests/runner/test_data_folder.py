"""A folder of data of one's own: what is read from it, and which folders are refused before a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.base.errors import BadInput
from bench.bundle.stated_manifest import read_stated
from bench.planning.manifest import Manifest, parse_manifest
from bench.runner.run.check_data import check_data, remarks_about_data
from bench.runner.trial.data_folder import FolderPool
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import samples_of
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from tests.builders import trial

TEXT = {"name": "tiny-gpt-neox", "recipe": {"sequence_length": 16, "batch_size": 4}}
IMAGES = {"name": "tiny-vit", "recipe": {"batch_size": 4}}
WORDS = 512  # of tiny-gpt-neox
SIDE = 32  # pixels of tiny-vit's images


def manifest(entry: dict[str, Any], folder: Any) -> Manifest:
    document = {"schema": "bench/manifest/v1", "models": [entry | {"data": str(folder)}], "methods": "naive"}
    return parse_manifest(json.dumps(document).encode(), "m.json")


def reason(entry: dict[str, Any], folder: Path) -> str:
    with pytest.raises(BadInput) as caught:
        check_data(manifest(entry, folder), "m.json")
    return str(caught.value)


def pool_of(entry: dict[str, Any], folder: Path) -> FolderPool:
    check_data(manifest(entry, folder), "m.json")
    return FolderPool(manifest(entry, folder).models[0], folder)


@pytest.mark.parametrize("form", ["bin", "npy"])
def test_samples_are_pieces_of_the_files_and_all_come_once_a_round(form: str, tmp_path: Path) -> None:
    for number, start in enumerate((0, 200)):
        tokens = np.arange(start, start + 175, dtype=np.uint16)
        (tmp_path / f"part-{number}").mkdir()
        path = tmp_path / f"part-{number}" / f"tokens.{form}"
        if form == "bin":
            tokens.tofile(path)
        else:
            np.save(path, tokens)
    pool = pool_of(TEXT, tmp_path)
    found = [pool.tokens(index, 17) for index in range(20)]
    assert all((np.diff(one) == 1).all() and one.dtype == np.int64 for one in found)
    starts = {int(one[0]) for one in found}
    assert starts == {part + 17 * n for part in (0, 200) for n in range(10)}
    assert [int(one[0]) for one in found] != sorted(starts)  # shuffled
    assert int(pool.tokens(20, 17)[0]) == int(found[0][0])


def test_tokens_of_a_large_vocabulary_take_32_bits(tmp_path: Path) -> None:
    np.full(400, 70_000, dtype=np.uint32).tofile(tmp_path / "tokens.bin")
    entry = {"name": "llama-3.2-1b", "recipe": {"sequence_length": 16, "batch_size": 4}}
    assert (pool_of(entry, tmp_path).tokens(3, 17) == 70_000).all()


def test_images_of_an_array_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((8, 3, SIDE, SIDE), 7, dtype=np.uint8))
    pool = pool_of(IMAGES, tmp_path)
    image = pool.image(5)
    assert image.shape == (3, SIDE, SIDE) and (image == 7).all()


def test_pictures_are_decoded_and_scaled_to_the_recipes_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(sys.prefix) / "timm"))  # Pillow is there
    from PIL import Image

    for number, name in enumerate(("a.jpg", "b.png", "class/c.webp", "d.JPG")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (90, 60 + number), (200, 100, 50)).save(tmp_path / name)
    pool = pool_of(IMAGES, tmp_path)
    for index in range(4):
        image = pool.image(index)
        assert image.shape == (3, SIDE, SIDE) and image.dtype == np.uint8
        np.testing.assert_allclose(image.mean((1, 2)), (200, 100, 50), atol=3)


def test_a_model_trains_on_the_folder(tmp_path: Path) -> None:
    np.full(1000, 5, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    (model,) = manifest(TEXT, tmp_path).models
    one = trial(model=model, setting=(), micro_batch=2, data=str(tmp_path))
    run = TrialRun(one, Device("cpu"), Team(), tmp_path / "scratch", lambda _: None)
    run.prepare()
    batch = next(run.batches)
    assert (batch["input_ids"] == 5).all() and (batch["labels"] == 5).all()
    assert not (tmp_path / "scratch").exists()  # nothing is made up
    losses = [float(run.step(2)) for _ in range(3)]
    assert losses[-1] < losses[0]


def test_without_a_folder_data_are_made_up(tmp_path: Path) -> None:
    (model,) = manifest(TEXT, tmp_path).models
    samples = samples_of(trial(model=model), tmp_path)
    assert len(samples[0]["input_ids"]) == 16 and (tmp_path / "pool").is_dir()


def test_a_token_beyond_the_vocabulary_is_named_with_its_file(tmp_path: Path) -> None:
    tokens = np.zeros(1 << 18, dtype=np.uint16)
    tokens[-10_000:] = 60_000
    tokens.tofile(tmp_path / "tokens.bin")
    pool = pool_of(TEXT, tmp_path)  # its first tokens are right
    with pytest.raises(ValueError, match=r"tokens.bin has the token 60000 near \d+; .* vocab_size is 512"):
        for index in range(1 << 18):
            pool.tokens(index, 17)


def written(folder: Path, name: str, array: Any) -> Path:
    np.save(folder / name, array)
    return folder


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    found = reason(TEXT, tmp_path / "missing")
    assert "/models/0/data" in found and "missing is not a folder of this machine" in found


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "has none of its files: nothing" in reason(TEXT, tmp_path)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard.parquet").write_bytes(b"x")
    found = reason(TEXT, tmp_path)
    assert "has none of its files: .parquet" in found and ".bin or .npy files of tokens" in found


@pytest.mark.parametrize(
    ("entry", "array", "words"),
    [
        (TEXT, np.zeros(60, np.uint16), "has 3 samples, less than a batch of 4"),
        (TEXT, np.zeros((20, 17), np.uint16), "holds uint16 of shape (20, 17), not tokens"),
        (TEXT, np.zeros(1000, np.float32), "holds float32 of shape (1000,), not tokens"),
        (TEXT, np.full(1000, WORDS), f"has the token {WORDS}"),
        (TEXT, np.array([{}] * 9, dtype=object), "cannot be read"),
        (IMAGES, np.zeros((8, SIDE, SIDE, 3), np.uint8), f"holds uint8 of shape (8, {SIDE}, {SIDE}, 3)"),
        (IMAGES, np.zeros((8, 3, SIDE, SIDE), np.float32), "holds float32 of shape"),
        (IMAGES, np.zeros((2, 3, SIDE, SIDE), np.uint8), "has 2 samples, less than a batch of 4"),
    ],
)
def test_a_file_of_another_form_is_refused(
    entry: dict[str, Any], array: Any, words: str, tmp_path: Path
) -> None:
    assert words in reason(entry, written(tmp_path, "x.npy", array))


def test_an_empty_file_of_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"")
    assert "cannot be read" in reason(TEXT, tmp_path)


def test_an_objective_without_files_is_refused(tmp_path: Path) -> None:
    architecture = {"model_type": "wav2vec2", "num_labels": 5}
    recipe = {"objective": "audio-classification", "batch_size": 4, "steps": 9, "precision": "fp32",
              "audio_seconds": 1}  # fmt: skip
    entry = {"name": "mine", "architecture": architecture, "recipe": recipe}
    assert "reads no folder: its data are made up" in reason(entry, tmp_path)


@pytest.mark.parametrize("folder", ["data", "", "~/data", "/a\nb", 5])
def test_a_folder_is_an_absolute_path(folder: Any) -> None:
    document = {"schema": "bench/manifest/v1", "models": [TEXT | {"data": folder}]}
    with pytest.raises(BadInput, match="/models/0"):
        parse_manifest(json.dumps(document).encode(), "m.json")


def test_planning_elsewhere_says_that_the_folder_is_checked_later(tmp_path: Path) -> None:
    assert [*remarks_about_data(manifest(TEXT, tmp_path))] == []
    (remark,) = remarks_about_data(manifest(TEXT, tmp_path / "missing"))
    assert remark.startswith("/models/0/data: ") and "is checked where the run begins" in remark


def test_the_folder_is_a_condition_of_a_result() -> None:
    """Comparisons name what differs between two results."""
    stated = read_stated(manifest(TEXT, "/data/a").data)
    assert stated.data_of("tiny-gpt-neox") == "/data/a"
    assert trial(data="/data/a").id != trial().id
