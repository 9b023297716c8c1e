"""`bench image` and `bench run --engine` as commands, in cases that need no engine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bench.cli import in_container
from bench.cli.main import main
from bench.images.container import Container
from bench.images.engines import EngineFacts
from bench.planning.manifest import manifest_of_model
from tests.images.made_up_images import archive_of, make_image

SBOM = json.dumps({"components": []}).encode()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path, [{"usr": None}, {"usr/share/bench/sbom.cdx.json": SBOM}])


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schema": "bench/manifest/v1", "models": ["tiny-vit"], "methods": "naive"}))
    return path


def test_id_prints_only_the_identity_on_stdout(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "id", str(image)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("sha256:") and len(printed.out.split()) == 1
    assert "variant cpu" in printed.err
    assert main(["image", "id", str(image), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["config"], len(document["diff_ids"])) == (printed.out.strip(), 2)


def test_texts_of_an_image_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b]0;title\x07"
    configuration = {
        "rootfs": {"diff_ids": ["sha256:" + hashlib.sha256(b"").hexdigest()]},
        "config": {"Labels": {"bench.variant": escape, "bench.lock": escape}},
        "history": [{"created_by": escape}],
    }
    image = archive_of(
        tmp_path / "x.tar", manifest__json=[{"Config": "c", "Layers": ["l"]}], c=configuration, l=b""
    )
    assert main(["image", "id", str(image)]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.err + printed.out
    assert printed.err.count("\\x1b]0;title") == 3


def test_save_compresses_and_keeps_the_identity(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["image", "id", str(image)])
    wanted = capsys.readouterr().out
    for name in ("one.tar", "two.tar"):
        assert main(["image", "save", str(image), "-o", str(image.parent / name)]) == 0
        assert capsys.readouterr().out == wanted
    assert (image.parent / "one.tar").read_bytes() == (image.parent / "two.tar").read_bytes()
    assert not list(image.parent.glob("save-*"))


def test_sbom_prints_the_image_s_own(image: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["image", "sbom", str(image)]) == 0
    assert capfdbinary.readouterr().out == SBOM


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["image", "id", "nowhere.tar"], 2, "nowhere.tar: no such file"),
        (["image", "build", "cuda14"], 2, 'nearest: "cuda13"'),
        (["image", "build", "cpu", "--source", "/nowhere"], 2, "holds no Dockerfile"),
        (["image", "kernels", "cuda13", "--source", "/nowhere"], 2, "holds no Dockerfile"),
        (["image", "kernels", "cuda13", "--only", "torch"], 2, '"torch" is not a wheel to compile'),
        (["image", "kernels", "cpu"], 2, "has no wheels to compile"),
        (["run", "M", "--image", "bench:cpu"], 2, "--image without --engine"),
        (["run", "M", "--engine", "docker", "--key", "K"], 2, "a container has its own key for each run"),
        (["run", "M", "--engine", "docker"], 3, "does not answer"),
        (["check", "--image", "bench:cpu"], 2, "--image without --engine"),
        (["check", "--engine", "docker", "--key", "K"], 2, "a container has its own key for each run"),
        (["check", "--engine", "docker", "--junit", "j.xml"], 2, "--junit names a file of this machine"),
        (["check", "--engine", "docker"], 3, "does not answer"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str],
    code: int,
    words: str,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{manifest.parent}/no.sock")
    assert main([str(manifest) if word == "M" else word for word in arguments]) == code
    assert words in capsys.readouterr().err


class Seen:
    """An engine that starts nothing."""

    name = "docker"

    def __init__(self) -> None:
        self.told: Container | None = None
        self.secret: bytes | None = None
        self.manifest: bytes | None = None

    def facts(self) -> EngineFacts:
        return EngineFacts("docker", "29.0", None, None)

    def inspect(self, image: str) -> None:
        return None

    def run(self, container: Container) -> int:
        self.told = container
        self.secret = Path(container.meet_secret).read_bytes() if container.meet_secret else None
        self.manifest = Path(container.manifest).read_bytes()
        return 0


@pytest.mark.parametrize(
    ("place", "handed_on"),
    [
        ([], {"CUDA_VISIBLE_DEVICES": "2,3"}),
        (
            ["--nodes", "2", "--node", "1", "--meet", "n1:29400"],
            {"CUDA_VISIBLE_DEVICES": "2,3", "NCCL_IB_HCA": "mlx5"},
        ),
    ],
)
def test_the_container_gets_the_visible_gpus_and_the_chosen_network(
    place: list[str], handed_on: dict[str, str], manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    monkeypatch.setattr(in_container, "find_engine", lambda _: seen)
    chosen = {"CUDA_VISIBLE_DEVICES": "2,3", "NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Ring"}
    for name, value in (chosen | {"BENCH_MEET_SECRET": "s" * 32}).items():
        monkeypatch.setenv(name, value)
    out = manifest.parent / "out"
    assert main(["run", str(manifest), "--engine", "docker", "--out", str(out), *place]) == 0
    assert seen.told is not None
    assert seen.told.environment == handed_on
    assert (seen.secret, "--meet-secret" in seen.told.command) == (
        (b"s" * 32, True) if place else (None, False)
    )


def test_the_container_reads_the_manifest_for_which_a_models_name_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    monkeypatch.setattr(in_container, "find_engine", lambda _: seen)
    assert main(["run", "tiny-vit", "--engine", "docker", "--out", str(tmp_path / "out")]) == 0
    assert seen.manifest == manifest_of_model("tiny-vit")
