"""The floors of bench/, and the imports between its modules, read from the source.

tests/test_layers.py checks the imports against the floors; `make graph` draws both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import bench

ROOT = Path(bench.__file__).parent
# The folders directly below bench/, from the bottom. Folders of one floor do not import each other.
FLOORS = (
    ("base", "packages"),
    ("training", "signing", "environment"),
    ("records",),
    ("planning",),
    ("bundle",),
    ("node_check", "operator", "images", "manual"),
    ("runner", "push", "report"),
    ("export",),
    ("library",),
    ("cli",),
)
# Floors inside a folder, for modules and folders directly below it. A module that is not named here is on
# the floor "*". If a folder has no floor "*", each of its modules must be named.
INNER_FLOORS = {
    "training": (
        ("setting", "schedules", "lifetimes"),
        ("triton", "vendor"),
        ("objectives", "optimizers"),
        ("models",),
        ("methods",),
    ),
    "planning": (("*",), ("search", "prediction")),
    "node_check": (("judging",), ("checks",), ("*",), ("recompute_any",)),
    "images": (("*",), ("engines",)),
    "runner": (("machine",), ("trial",), ("processes",), ("run",), ("check",)),
    "report": (("read_bundles", "markup"), ("compare",), ("plots", "text"), ("pages", "paper", "reproduce")),
}
ANYWHERE = {"", "data"}  # bench/__init__.py and the shipped data: everything may import them
ABOVE_ALL = {"__main__"}
OFFERED = {"base", "library"}  # where the names of bench/__init__.py come from, imported when first used
EXPORTED = "export.templates"  # exported scripts; tests/export checks their imports

Arrow = tuple[str, str]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Find the modules of bench, keyed by their dotted names below it; "" is bench itself."""
    names = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    clean = {f".{name}".removesuffix(".__init__").removeprefix("."): path for name, path in names.items()}
    return {name: path for name, path in sorted(clean.items()) if not name.startswith(EXPORTED)}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Find the modules of bench that a file imports: at its top, inside functions, and only for types."""
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bench":
            source = (node.module or "").removeprefix("bench").removeprefix(".")
            names = {f"{source}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {name if name in known else source for name in names}
    return found & known.keys()


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a module, also those inside others, and nothing that they compute."""
    todo: list[ast.AST] = [tree]
    while todo:
        yield (node := todo.pop())
        inside = ast.iter_child_nodes(node)
        todo += [part for part in inside if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case)]


def arrows(root: Path = ROOT) -> set[Arrow]:
    """Find all pairs of modules of which the first imports the second."""
    known = modules(root)
    return {(name, other) for name, path in known.items() for other in imported(path, known) - {name}}


def floor_of(module: str) -> int | None:
    """Return the number of a module's floor, from the bottom; None for a module directly below bench/."""
    room = module.partition(".")[0]
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


def inner_floor_of(module: str) -> tuple[int, str] | None:
    """Return the number and the name of a module's floor inside its folder; None without inner floors."""
    room, _, rest = module.partition(".")
    floors, name = INNER_FLOORS.get(room), rest.partition(".")[0]
    if floors is None or not name:
        return None
    for wanted in (name, "*"):
        for number, names in enumerate(floors):
            if wanted in names:
                return number, name
    return -1, name


def goes_down(module: str, other: str) -> bool:
    """Whether `module` may import `other`: from a lower floor, or from its own folder."""
    room, other_room = module.partition(".")[0], other.partition(".")[0]
    if other_room in ANYWHERE or room in ABOVE_ALL:
        return True
    if not room:
        return other_room in OFFERED
    if room != other_room:
        here, there = floor_of(module), floor_of(other)
        return here is not None and there is not None and here > there
    inner, other_inner = inner_floor_of(module), inner_floor_of(other)
    if inner is None or other_inner is None or inner[1] == other_inner[1]:
        return True
    (here, name), (there, other_name) = inner, other_inner
    if here == there:  # modules of one floor may import each other, folders may not
        return not any((ROOT / room / each).is_dir() for each in (name, other_name))
    return here > there
