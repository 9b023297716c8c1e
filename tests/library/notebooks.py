"""Run the code cells of notebooks in order, in one namespace and in the notebook's folder, as Jupyter does.

python -m tests.library.notebooks    run every notebook of docs/notebooks, and write its outputs into it

A cell's output is what it prints, and then the value of its last expression. Jupyter's own runner would
bring 37 packages into the environment of every test.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/notebooks"


class CellFailed(Exception):
    """A cell raised an error; the message names the notebook and the cell."""


def with_outputs(path: Path) -> dict[str, Any]:
    """Run a notebook; return its document with the outputs of this run."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    with chdir(path.parent):
        for number, cell in enumerate(code, 1):
            where = f"{path.name}, cell {number}"
            try:
                outputs = list(_outputs("".join(cell["source"]), where, namespace, number))
            except Exception as error:
                raise CellFailed(f"{where}: {type(error).__name__}: {error}") from error
            cell |= {"execution_count": number, "outputs": outputs}
    return document


def _outputs(source: str, where: str, namespace: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed):
        exec(compile(tree, where, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
    if text := printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


def as_text(document: dict[str, Any]) -> str:
    """Return a notebook as Jupyter writes it."""
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(as_text(with_outputs(path)), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
