"""Rules for imports, checked in the source, so that lazy imports are found too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import bench

ROOT = Path(bench.__file__).parent
HEAVY = {"torch", "transformers", "deepspeed", "mamba_ssm", "timm", "triton"}
# Modules that only workers import, and exported scripts, which are copied out and never imported here.
IN_WORKER = (
    "runner/trial/", "runner/processes/worker.py", "runner/processes/node_member.py",
    "runner/check/torch_rig.py", "training/triton/", "training/optimizers/updates/", "export/templates/",
    "training/models/fp8.py", "training/models/transposed_factors.py", "training/models/dit_module.py",
    "training/models/full_attention_operator.py",
    "export/runtime.py",
)  # fmt: skip
# Neither at import nor when called.
WITHOUT_TORCH = ("base/", "packages/", "environment/", "signing/", "records/", "bundle/", "node_check/",
                 "operator/", "images/", "push/", "report/", "export/", "library/", "cli/",
                 "planning/")  # fmt: skip
# In these folders, only functions that a worker calls import torch.
CALLED_BY_WORKERS = ("node_check/checks/", "export/templates/", "export/runtime.py")


def imports(path: Path, *, lazy: bool) -> set[str]:
    """Return the modules that a file imports; `lazy` includes imports inside functions."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else _at_import(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _at_import(tree: ast.Module) -> list[ast.AST]:
    """Yield the nodes that run when a module is imported, without functions and `if TYPE_CHECKING`."""
    nodes: list[ast.AST] = []
    for statement in tree.body:
        typing_only = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)
        if not typing_only and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            nodes += ast.walk(statement)
    return nodes


FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}


def test_only_workers_import_torch_when_a_module_is_imported() -> None:
    for name, path in FILES.items():
        if not name.startswith(IN_WORKER):
            heavy = {i.partition(".")[0] for i in imports(path, lazy=False)} & HEAVY
            assert not heavy, f"{name} imports {heavy}"


def test_folders_that_read_and_show_bundles_never_import_torch_not_even_when_called() -> None:
    for name, path in FILES.items():
        if name.startswith(WITHOUT_TORCH) and not name.startswith(CALLED_BY_WORKERS):
            heavy = {i.partition(".")[0] for i in imports(path, lazy=True)} & HEAVY
            assert not heavy, f"{name} imports {heavy}"


def test_the_runner_never_imports_fabric_or_docker() -> None:
    for name, path in FILES.items():
        if name.startswith("runner/"):
            assert not {i.partition(".")[0] for i in imports(path, lazy=True)} & {"fabric", "docker"}, name


def test_the_lowest_modules_import_nothing_of_bench() -> None:
    assert not imports(ROOT / "__init__.py", lazy=False)
    assert not {i for i in imports(ROOT / "base/errors.py", lazy=True) if i.startswith("bench")}


def test_what_runs_on_a_node_before_the_installation_needs_the_standard_library_alone() -> None:
    names = [path.stem for path in (ROOT / "environment").glob("*.py") if path.stem != "__init__"]
    script = f"import sys\nfrom bench.environment import {', '.join(names)}\nprint(*sys.modules)"
    command = [sys.executable, "-S", "-c", script]  # without any folder of packages
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - {"bench", "__main__", *sys.stdlib_module_names} == set()


def modules_loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded_by(code: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_loaded_by(code)}


def test_verify_and_plan_start_without_the_heavy_libraries() -> None:
    loaded = loaded_by(
        "import bench.cli.main, bench.cli.verify, bench.cli.run, bench.cli.plan, bench.cli.compare"
    )
    assert not loaded & HEAVY
    verify = loaded_by("import bench.cli.main, bench.cli.verify")
    assert not verify & {*HEAVY, "jsonschema", "rich", "tabulate", "numpy"}


# errors.py imports nothing of bench, and classes elsewhere inherit from those of verdict.py.
MADE_SLOWLY = {"bench.base.errors", "bench.bundle.verdict"}


def test_verify_starts_with_frozen_dataclasses_that_are_made_quickly() -> None:
    loaded = modules_loaded_by("import bench.cli.main, bench.cli.verify")
    assert "bench.base.frozen" in loaded
    for name in {name for name in loaded if name.startswith("bench.")} - MADE_SLOWLY:
        file = ROOT.joinpath(*name.split(".")[1:])
        path = file.with_suffix(".py") if file.with_suffix(".py").exists() else file / "__init__.py"
        if "@dataclass(frozen=True" in path.read_text(encoding="utf-8"):
            assert "dataclasses.dataclass" not in imports(path, lazy=False), f"{name}: bench.base.frozen"


def test_the_supervising_side_of_a_run_starts_without_torch() -> None:
    loaded = loaded_by("import bench.runner.run.execute, bench.runner.check.check_node")
    assert not loaded & HEAVY
