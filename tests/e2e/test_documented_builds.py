"""The lines that build images and compile kernels are typed in a checkout whose locks name stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.images.archive import facts_of
from bench.images.kernel_layer import is_layer
from tests.documented_commands import printed
from tests.e2e.images import Images
from tests.e2e.reader import Reader
from tests.e2e.services import docker_engine, require
from tests.e2e.stand_in_stack import lock_stand_ins
from tests.release.checkouts import checkout

pytestmark = pytest.mark.e2e


@contextmanager
def large_disk(folder: Path) -> Iterator[Path]:
    """Yield a folder in memory that has as much room as a build asks for, of which it uses little."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64g", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def reader(images: Images) -> Iterator[Reader]:
    require("mmdebstrap", "buildah")
    assert images.one
    with tempfile.TemporaryDirectory(prefix="bench-e2e-") as name:
        folder, stand_ins, cache = Path(name) / "checkout", Path(name) / "files", Path(name) / "cache"
        checkout(folder)
        lock_stand_ins(folder, images.folder / "cache/wheels", stand_ins)
        (Path(name) / "docker").mkdir()
        with docker_engine(Path(name) / "docker") as address, large_disk(cache):
            (cache / "bench/images").mkdir(parents=True)
            (base,) = (images.folder / "cache").glob("base-*.tar")
            shutil.copy(base, cache / "bench/images")
            own = {
                "DOCKER_HOST": address, "XDG_CACHE_HOME": str(cache), "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(stand_ins),
            }  # fmt: skip
            yield Reader(folder, own)


def identity(reader: Reader, name: str) -> str:
    return facts_of(reader.folder / name).identity.config


def test_images_are_built_and_loaded(reader: Reader) -> None:
    assert "loaded into docker as bench:cpu" in reader.type(printed("bench image build cpu --load docker"))
    one = identity(reader, "out/images/bench-cpu.tar")
    loaded = reader.type(printed("bench image build cuda13 --load docker"))
    assert "loaded into docker as bench:cuda13" in loaded
    assert identity(reader, "out/images/bench-cuda13.tar") in reader.type("bench image id bench:cuda13")
    (reader.folder / "out/images/bench-cpu.tar").unlink()
    reader.type(printed("bench image build cpu && bench image build cuda13"))
    assert identity(reader, "out/images/bench-cpu.tar") == one


def test_kernels_are_compiled_into_a_layer(reader: Reader) -> None:
    said = reader.type(printed('bench image kernels cuda13 --arch "8.0;9.0" --jobs 32'))
    for kernel in ("flash-attn", "mamba-ssm", "causal-conv1d"):
        assert re.search(f"{kernel} \\S+: code for 8.0, 9.0", said), said
    assert is_layer(reader.folder / "out/images/bench-cuda13-kernels.tar")
    said = reader.type(printed("bench image kernels cuda12.8"))
    assert "deepspeed" in said and "flash-attn" not in said
    assert is_layer(reader.folder / "out/images/bench-cuda12.8-kernels.tar")
