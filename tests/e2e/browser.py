"""A real headless Chromium, installed if missing; without it, tests fail and are never skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SCRIPT = Path(__file__).with_name("chromium.sh")


@contextmanager
def chromium() -> Iterator[Browser]:
    subprocess.run([SCRIPT], check=True, stdout=subprocess.DEVNULL)
    path = shutil.which("chromium")
    assert path is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
