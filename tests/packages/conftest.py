"""Two web servers, and a machine whose pip and apt have no configuration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packages.web import Web, serving


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as one:
        yield one


@pytest.fixture
def second() -> Iterator[Web]:
    with serving() as one:
        yield one
