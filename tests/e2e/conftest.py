"""Fixtures that all end-to-end tests of a session share."""

from __future__ import annotations

import pytest

from tests.conftest import shared_folder
from tests.e2e.images import Images


@pytest.fixture(scope="session")
def images() -> Images:
    folder = shared_folder() / "images"
    folder.mkdir(exist_ok=True)
    return Images(folder)
