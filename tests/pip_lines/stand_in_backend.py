"""Build a stand-in: a wheel with the name, version and requirements of a package, and a module of one line.

This file is also the build backend inside of stand-ins that are source archives, so it needs nothing but the
standard library. Beside it is then facts.json, whose `imports` are the modules that the real build imports.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

BUILT_WITH = "built_with.json"  # in the module of what was built: versions of the imported modules


def write_wheel(
    folder: Path, name: str, version: str, metadata: Iterable[str] = (), built_with: Mapping[str, str] = {}
) -> str:
    """Write the wheel; return its file name. `metadata` are lines such as "Requires-Dist: torch"."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n",
        f"{module}/{BUILT_WITH}": json.dumps(built_with),
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata, ""]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    file = f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return file


def build_wheel(
    folder: str, config_settings: object = None, metadata_directory: object = None
) -> str:  # called by pip, by position
    facts = json.loads(Path("facts.json").read_text())
    versions = {name: importlib.import_module(name).__version__ for name in facts["imports"]}
    return write_wheel(Path(folder), facts["name"], facts["version"], facts["metadata"], versions)


build_editable = build_wheel
