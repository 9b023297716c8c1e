"""Let the wheel carry what images are built from, and the manifests; all else is in pyproject.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Beside the package, where `bench.base.shipped_data.repository` finds it: the digest of the package tells
# which source of bench ran, however it was installed.
FOLDER = "bench_source"
CARRIED = ("Dockerfile", "LICENSE", "README.md", "pyproject.toml", "requirements.lock", "revision")
CARRIED_BELOW = ("docker", "manifests")
CARRIED_PAGES = ("docs/*.md", "docs/guides/*.md")  # which `bench explain` reads


class BuildWithSource(build_py):
    """Builds the package, and copies the carried files beside it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folders = [path for folder in CARRIED_BELOW for path in Path(folder).glob("*") if path.is_file()]
        pages = [path for pattern in CARRIED_PAGES for path in Path().glob(pattern)]
        for path in sorted([*map(Path, CARRIED), *folders, *pages]):
            if path.is_file():  # an image installs bench without them
                target = Path(self.build_lib, FOLDER, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithSource})
