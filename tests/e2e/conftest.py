"""What end-to-end tests share for a whole session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.images import Images


@pytest.fixture(scope="session")
def images() -> Iterator[Images]:
    """The CPU image, removed at the end of the session: it takes gigabytes, which pytest would keep."""
    folder = Path(tempfile.mkdtemp(prefix="bench-images-"))
    yield Images(folder)
    shutil.rmtree(folder)
