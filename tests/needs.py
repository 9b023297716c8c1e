"""Programs that a test needs. On a stranger's machine their lack skips it; in CI it is a failure."""

import os
import shutil

import pytest


def needs(program: str) -> pytest.MarkDecorator:
    missing = shutil.which(program) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"no {program} here")
