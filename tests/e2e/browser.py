"""A real headless Chromium, installed if missing; without it, tests fail and are never skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.needs import DEBIAN_PACKAGES
from tests.patience import PATIENCE_SECONDS


@contextmanager
def chromium() -> Iterator[Browser]:
    subprocess.run([DEBIAN_PACKAGES, "chromium"], check=True)
    path = shutil.which("chromium")
    assert path is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=PATIENCE_SECONDS * 1e3
        )
        yield browser
        browser.close()


def new_page(browser: Browser, **options: Any) -> Page:
    """Open a page whose actions wait for as long as a busy machine needs, and not for playwright's 30 s."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_SECONDS * 1e3)
    return page
