"""`python -m website`, called by `make docs`: build the site, and check every link of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.base.errors import BenchError, EnvironmentCannot
from website.built import mistakes
from website.staging import stage


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m website", description="Build the documentation's site.")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("out/site"), help="a folder, which is replaced"
    )
    out: Path = parser.parse_args(words).out.resolve()
    try:
        build(out)
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    wrong = mistakes(out)
    if wrong:
        print(f"{len(wrong)} mistakes in {out}:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    print(f"site  {out}/index.html")
    print(f"      search works where it is served: python3 -m http.server --directory {out}")
    return 0


def build(out: Path) -> None:
    if find_spec("material") is None:
        raise EnvironmentCannot(
            "mkdocs-material is not installed", advice="pip install '.[docs]'; make docs does so"
        )
    with tempfile.TemporaryDirectory() as name:
        config = stage(Path(name), out)
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # decision 62 has what it says
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise EnvironmentCannot(
            f"mkdocs ended with exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
