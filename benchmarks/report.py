"""Measure the size of the HTML report of many bundles, and when it is interactive in headless Chromium.

python benchmarks/report.py BUNDLE [COUNT]     default: 100; an empty page is measured for comparison
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.cli.compare import CompareArguments, collect
from bench.report.pages.html import write_html
from tests.e2e.browser import chromium
from tests.report.made import copies

RUNS = 5
READY = "<!doctype html><title>empty</title><script>document.documentElement.dataset.ready = 'yes'</script>"


def main() -> int:
    """Print the size of a report of many copies, and when a browser can use it and an empty page."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="what is copied")
    parser.add_argument(
        "count", nargs="?", type=int, default=100, metavar="COUNT", help="copies; default: 100"
    )
    given = parser.parse_args()
    source, count = given.bundle, given.count
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        copies(source, folder, count)
        report, empty = folder / "report.html", folder / "empty.html"
        write_html(report, collect(CompareArguments((folder,), html=report)))
        empty.write_text(READY)
        times: dict[Path, list[float]] = {report: [], empty: []}
        for _ in range(RUNS):
            for path, found in times.items():
                page = browser.new_page()
                page.goto(path.as_uri(), wait_until="commit")
                page.wait_for_selector("html[data-ready=yes]", state="attached")
                page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
                found.append(page.evaluate("performance.now()"))
                page.close()
        for path, found in times.items():
            size, middle = path.stat().st_size, statistics.median(found)
            print(f"{path.name:<12} {size:>10,} bytes   usable after {middle:5.0f} ms, median of {RUNS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
