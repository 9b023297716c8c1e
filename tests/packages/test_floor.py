"""The program that assembles images needs Python 3.9 and its standard library, and nothing else."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import bench
from bench.push.image_store import ImageStore
from release.archives import extract_all

ROOT = Path(bench.__file__).parent
FOLDER = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "packages").glob("*.py"))
SENT = sorted(["__init__.py", "images/__init__.py", "images/assemble.py", *FOLDER])


FOR_TYPES = "TYPE_CHECKING"  # the condition of what type checkers alone read


@pytest.mark.parametrize("name", SENT)
def test_python_3_9_reads_it_and_it_imports_what_is_sent(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    never_run = [
        each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == FOR_TYPES
    ]
    nodes = [node for each in tree.body if each not in never_run for node in ast.walk(each)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {each for each in imported if each.startswith("bench")}
    assert own <= {f"bench.{path.removesuffix('.py').replace('/', '.')}" for path in FOLDER}
    assert {each.partition(".")[0] for each in imported - own} <= sys.stdlib_module_names


def test_the_program_that_assembles_images_is_sent_with_all_that_it_imports(tmp_path: Path) -> None:
    data = ImageStore(lambda text: None).assembler()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert sorted(archive.getnames()) == [f"bench/{name}" for name in SENT]
        extract_all(archive, tmp_path)
    script = "import bench.images.assemble as a, sys; print(a.__file__, *sys.modules)"
    command = [sys.executable, "-S", "-c", script]  # without any folder of packages
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    file, *modules = done.stdout.split()
    assert file == str(tmp_path / "bench/images/assemble.py")
    assert {name.partition(".")[0] for name in modules} <= {"bench", "__main__", *sys.stdlib_module_names}
