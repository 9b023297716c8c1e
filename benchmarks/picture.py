"""Take a screenshot of the top of the HTML report of some bundles, at the width of a desktop screen.

python benchmarks/picture.py BUNDLES OUT.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.cli.compare import CompareArguments, collect
from bench.report.pages.html import write_html
from tests.e2e.browser import chromium


def main() -> int:
    bundles, picture = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        report = Path(name) / "report.html"
        write_html(report, collect(CompareArguments((bundles,), html=report)))
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="light")
        page.goto(report.as_uri())
        page.screenshot(path=picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
