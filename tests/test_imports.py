"""Who may import whom: read from the source, so that no import is missed because it is lazy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import bench

ROOT = Path(bench.__file__).parent
# Each side sees those before it, never its siblings.
SIDES = ("runner", "control", "report")
HEAVY = {"torch", "transformers", "deepspeed", "mamba_ssm", "timm"}
TEMPLATES = ("export", "templates")  # copied out, never imported here
IN_WORKER = {
    "worker", "member", "trial", "strategies", "team", "loop", "saving", "fsdp", "halved", "zero", "data",
    "device", "ceilings", "rig", "products", "adding_kernel", "depthwise_kernels", "rotary_kernels",
    "gelu_kernels", "norm_kernels",
}  # fmt: skip

READERS = {"bundle", "pack", "ssh", "sshsig", "dsse", "statement", "handshake", "krl", "trust", "verify",
           "verdict", "summary", "recompute", "plan", "keys", "places"}  # fmt: skip


def imports(path: Path, *, lazy: bool) -> set[str]:
    """Modules that a file imports; with `lazy`, those inside functions too."""
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
    """What runs when the module is imported: not functions, not `if TYPE_CHECKING`."""
    nodes: list[ast.AST] = []
    for statement in tree.body:
        typing_only = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)
        if not typing_only and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            nodes += ast.walk(statement)
    return nodes


FILES = {path.relative_to(ROOT): path for path in sorted(ROOT.rglob("*.py"))}


def test_the_sides_do_not_know_each_other() -> None:
    for name, path in FILES.items():
        side = {name.parts[0]} & set(SIDES)
        if name.parts[:2] == TEMPLATES:
            continue
        allowed = set(SIDES) if name.stem in ("cli", "commands") else side
        others = {f"bench.{other}" for other in set(SIDES) - allowed}
        wrong = {i for i in imports(path, lazy=True) if any(i == o or i.startswith(o + ".") for o in others)}
        assert not wrong, f"{name} imports {wrong}"


def test_only_the_worker_imports_torch_when_it_is_imported() -> None:
    for name, path in FILES.items():
        if (name.parts[0] in ("runner", "methods") and name.stem in IN_WORKER) or name.parts[:2] == TEMPLATES:
            continue
        heavy = {i.partition(".")[0] for i in imports(path, lazy=False)} & HEAVY
        assert not heavy, f"{name} imports {heavy}"


def test_what_reads_bundles_never_imports_torch_not_even_when_called() -> None:
    for name, path in FILES.items():
        exported = name.parts[0] == "export" and name.parts[:2] != TEMPLATES
        if name.parts[0] in ("report", "control") or exported or name.stem in READERS:
            heavy = {i.partition(".")[0] for i in imports(path, lazy=True)} & HEAVY
            assert not heavy, f"{name} imports {heavy}"


def test_the_runner_never_imports_what_ships() -> None:
    for name, path in FILES.items():
        if name.parts[0] == "runner":
            assert not {i.partition(".")[0] for i in imports(path, lazy=True)} & {"fabric", "docker"}, name


def test_the_leaves_import_nothing_of_ours() -> None:
    assert not imports(ROOT / "__init__.py", lazy=True)
    assert not {i for i in imports(ROOT / "errors.py", lazy=True) if i.startswith("bench")}


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_verify_and_plan_start_without_the_heavy_libraries() -> None:
    loaded = loaded_by(
        "import bench.cli.main, bench.report.bundles, bench.cli.run_and_plan, bench.planning.plan"
    )
    assert not loaded & HEAVY
    verify = loaded_by("import bench.cli.main, bench.report.bundles")
    assert not verify & {*HEAVY, "jsonschema", "rich", "tabulate", "numpy"}
