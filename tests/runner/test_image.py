"""The image that a run reports, and the images in which it refuses to run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import IMAGE_VARIABLE
from bench.planning.manifest import parse_manifest
from bench.records.text import software_line
from bench.records.trial import Image, NodeFacts
from bench.runner.machine.own_image import require_image, running_in
from bench.runner.machine.own_kernels import modules_without_code
from bench.training.methods import Target, refusal
from bench.training.models import known_models

DIGEST = "sha256:" + "a" * 64
DESCRIBED = {"schema": "bench/image/v1", "variant": "cpu", "lock": "sha256:1", "debian": "sha256:2"}
IMAGE = Image("cpu", "sha256:1", "sha256:2", DIGEST, ("sha256:3",))


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    path = tmp_path / "image.json"
    path.write_text(json.dumps(DESCRIBED))
    return path


def manifest(image: str | None) -> object:
    document = {"schema": "bench/manifest/v1", "models": ["tiny-vit"], "methods": "naive"}
    return parse_manifest(json.dumps(document | ({"image": image} if image else {})).encode(), "m.json")


def test_outside_an_image_the_environment_cannot_claim_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, json.dumps({"config": DIGEST, "diff_ids": []}))
    assert running_in(tmp_path / "image.json") is None


def test_the_identity_is_passed_in_by_the_engine(described: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, json.dumps({"config": DIGEST, "diff_ids": ["sha256:3"]}))
    assert running_in(described) == IMAGE


def test_without_a_passed_identity_an_image_knows_only_its_locks(described: Path) -> None:
    assert running_in(described) == Image("cpu", "sha256:1", "sha256:2")


@pytest.mark.parametrize(
    "told", ["no json", "[]", '{"config": 1}', '{"unknown": ""}', '{"config": "a", "config": "b"}']
)
def test_a_malformed_identity_is_refused(described: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, told)
    with pytest.raises(BadInput, match="does not say which image this is"):
        running_in(described)


def test_a_manifest_runs_only_in_its_own_image() -> None:
    wanted = manifest(DIGEST)
    require_image(wanted, IMAGE)  # type: ignore[arg-type]
    others = (
        None,
        dataclasses.replace(IMAGE, config=None),
        dataclasses.replace(IMAGE, config="sha256:" + "b" * 64),
    )
    for other in others:
        with pytest.raises(EnvironmentCannot, match=f"asks for the image {DIGEST}") as caught:
            require_image(wanted, other)  # type: ignore[arg-type]
        assert caught.value.exit_code == 3


def test_a_manifest_without_an_image_runs_anywhere() -> None:
    require_image(manifest(None), None)  # type: ignore[arg-type]
    require_image(manifest(None), IMAGE)  # type: ignore[arg-type]


def test_only_a_run_with_a_known_image_is_called_reproducible() -> None:
    node = NodeFacts("cpu", 1, 2**40, "os", "kernel", "3", image=IMAGE)
    assert software_line(node) == ("image", f"cpu {DIGEST}")
    unknown = dataclasses.replace(node, image=dataclasses.replace(IMAGE, config=None))
    assert "not reproducible" in software_line(unknown)[1]
    assert "cannot be rebuilt" in software_line(dataclasses.replace(node, image=None))[1]


def test_kernels_without_code_for_a_gpu_count_as_missing(tmp_path: Path) -> None:
    assert modules_without_code(["9.0"], tmp_path) == ()
    listed = tmp_path / "usr/share/bench/kernels.json"
    listed.parent.mkdir(parents=True)
    wheel = {"name": "mamba-ssm", "version": "1", "file": "m.whl", "sha256": "0", "code": ["8.0", "9.0"]}
    plain = {"name": "deepspeed", "version": "1", "file": "d.whl", "sha256": "0", "code": []}
    kernels = {"variant": "cuda13", "python": "3.11", "torch": "2.11.0", "wheels": [wheel, plain]}
    listed.write_text(json.dumps({"schema": "bench/kernels/v1", **kernels}))
    assert modules_without_code(["9.0"], tmp_path) == ()
    assert modules_without_code(["12.0", "9.0"], tmp_path) == ("mamba_ssm", "selective_scan_cuda")
    target = Target("cuda", 1, 1 << 40, "a GPU", "12.0", lacks=modules_without_code(["12.0"], tmp_path))
    reason = refusal(("kernels",), known_models()["mamba-2.8b"], target)
    assert reason is not None and reason.startswith("not installed, or without code for this GPU: mamba_ssm")
    listed.write_text("{}")
    with pytest.raises(BadInput, match="is not a list of kernels"):
        modules_without_code(["9.0"], tmp_path)
