"""Marker for tests that need a program: without it they are skipped, but in CI they run and fail."""

import os
import shutil

import pytest


def needs(program: str) -> pytest.MarkDecorator:
    missing = shutil.which(program) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"{program} is not installed")
