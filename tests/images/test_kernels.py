"""docker/kernels.py with a fake compiler: which objects are compiled again, and which are reused."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import bench
from tests.documented_commands import printed

SCRIPT = Path(bench.__file__).parent.parent / "docker/kernels.py"
FAKE_NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Cuda compilation tools, release ${RELEASE:-13.0}, V13.0.88"; exit 0; }
echo "$*" >> "$LOG"
for word; do source=$last; last=$word; done      # ... -c SOURCE -o TARGET
case "$*" in *broken*) echo "broken.cu(1): error"; exit 1 ;; esac
echo object > "$last"
"""


class Bench:
    """A folder with a source archive, the headers of torch, and the fake compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin/nvcc").write_text(FAKE_NVCC)
        (folder / "bin/nvcc").chmod(0o755)
        (folder / "site/torch/include").mkdir(parents=True)
        (folder / "site/torch-2.11.0.dist-info").mkdir()
        (folder / "site/torch-2.11.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
        self.archive("one.cu", "two.cu")

    def archive(self, *names: str, version: str = "1.7.0") -> None:
        (self.folder / "sources").mkdir(exist_ok=True)
        stem = f"causal_conv1d-{version}"
        with tarfile.open(self.folder / f"sources/{stem}.tar.gz", "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"{stem}/csrc/{name}"), io.BytesIO())

    def environment(self, release: str = "13.0") -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "site"),
            "LOG": str(self.folder / "log"),
            "RELEASE": release,
        }

    def compile(self, *arguments: str, release: str = "13.0") -> subprocess.CompletedProcess[str]:
        environment = self.environment(release)
        places = ["--sources", str(self.folder / "sources"), "--objects", str(self.folder / "objects")]
        command = [sys.executable, str(SCRIPT), "compile", *places, "--jobs", "2", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    @property
    def calls(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def objects(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder / "objects")) for path in self.folder.glob("objects/*/*.o")
        )


@pytest.fixture
def work(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_file_is_compiled_once(work: Bench) -> None:
    assert work.compile().returncode == 0
    assert len(work.calls) == 2
    again = work.compile()
    assert (again.returncode, len(work.calls)) == (0, 2)
    assert "2 files, 2 done before" in again.stdout


def test_the_documented_line_compiles_beside_the_sources(work: Bench) -> None:
    (work.folder / "docker").symlink_to(SCRIPT.parent)
    line = printed("python3 docker/kernels.py compile --sources sources/ --objects objects/ --jobs 64")
    environment = work.environment()
    subprocess.run(["bash", "-c", line], cwd=work.folder, env=environment, check=True)
    assert [name.rpartition("/")[2] for name in work.objects] == ["one.o", "two.o"]


def test_only_lost_objects_are_compiled_again(work: Bench) -> None:
    work.compile()
    (work.folder / "objects" / work.objects[0]).unlink()
    work.compile()
    assert len(work.calls) == 3
    assert "one.cu" in work.calls[-1]


def test_a_file_that_does_not_compile_does_not_stop_the_others(work: Bench) -> None:
    work.archive("broken.cu", "two.cu")
    done = work.compile()
    assert done.returncode == 1
    assert "broken.cu(1): error" in done.stdout
    assert [name.rpartition("/")[2] for name in work.objects] == ["two.o"]
    assert not list(work.folder.glob("objects/*/*.part"))


def test_objects_of_other_sources_architectures_or_compilers_are_never_reused(work: Bench) -> None:
    folders = set()
    for arguments, release in (((), "13.0"), (("--arch", "8.0;9.0"), "13.0"), ((), "13.1")):
        work.compile(*arguments, release=release)
        folders |= {name.partition("/")[0] for name in work.objects}
    work.archive("one.cu", "two.cu", "three.cu")
    work.compile()
    folders |= {name.partition("/")[0] for name in work.objects}
    assert len(folders) == 4
    assert any("csrc/three.cu" in call for call in work.calls)


def test_sources_whose_unpacking_was_interrupted_are_unpacked_again(
    work: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import kernels

    package = dataclasses.replace(kernels.PACKAGES[2], version="1.7.0")
    asked = argparse.Namespace(sources=work.folder / "sources", objects=work.folder / "objects")

    def interrupted(archive: tarfile.TarFile, path: Path) -> None:
        archive.extract(archive.getmembers()[0], path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "extractall", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kernels._unpacked(package, asked)
    found = kernels._unpacked(package, asked)
    assert sorted(path.name for path in found.glob("csrc/*")) == ["one.cu", "two.cu"]


def test_the_version_is_that_of_the_existing_archive(work: Bench) -> None:
    (work.folder / "sources/causal_conv1d-1.7.0.tar.gz").unlink()
    work.archive("one.cu", version="1.8.0.post1")
    work.compile()
    assert [name.rpartition("-")[0] for name in work.objects] == ["causal_conv1d-1.8.0.post1"]


def test_two_versions_of_one_package_are_refused(work: Bench) -> None:
    work.archive("one.cu", version="1.8.0")
    done = work.compile()
    assert (done.returncode, work.objects) == (1, [])
    assert "causal_conv1d-1.7.0.tar.gz and causal_conv1d-1.8.0.tar.gz: which one?" in done.stderr


def test_each_architecture_is_passed_to_the_compiler(work: Bench) -> None:
    work.compile("--arch", "8.0;12.0")
    assert all("-gencode=arch=compute_80,code=sm_80" in call for call in work.calls)
    assert all("-gencode=arch=compute_120,code=sm_120" in call for call in work.calls)


def test_a_wheel_is_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import kernels

    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files = {"m.py": b"1", "a/b.so": b"2", "thing-1.dist-info/METADATA": b"Name: thing\nVersion: 1\n"}
        wheel = kernels._pack(
            "thing-1", files if name == "one" else dict(reversed(files.items())), tmp_path / name
        )
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name == f"thing-1-{tag}-{tag}-linux_x86_64.whl"
