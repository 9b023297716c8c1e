"""Take screenshots of the first screen of the HTML report of some bundles: on a desktop, and on a phone.

python benchmarks/picture.py BUNDLES OUT.png      # and OUT-phone.png

The report answers a question, so that the pictures show an answer, and has an estimate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.cli.compare import CompareArguments, collect
from bench.report.pages.html import write_html
from tests.e2e.browser import chromium

ASKED = {"deadline_days": 5.0, "estimate": ("8xh100",)}
SCREENS = {"": (1280, 900), "-phone": (390, 844)}


def main() -> int:
    """Write one picture for each of SCREENS; the report is made for it and not kept."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("bundles", type=Path, metavar="BUNDLES", help="a bundle, or a folder of bundles")
    parser.add_argument("picture", type=Path, metavar="OUT.png", help="the picture of the desktop")
    given = parser.parse_args()
    bundles, picture = given.bundles, given.picture
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        report = Path(name) / "report.html"
        write_html(report, collect(CompareArguments((bundles,), html=report, **ASKED)))
        for screen, (width, height) in SCREENS.items():
            size = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme="light", is_mobile=width < 500)
            page.goto(report.as_uri())
            page.screenshot(path=picture.with_stem(picture.stem + screen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
