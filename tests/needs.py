"""Programs that tests need: how they are installed, and a marker for tests that are skipped without them.

In CI, a test runs without its program, and fails.
"""

import os
import shutil
from pathlib import Path

import pytest

# A script that installs the packages of the programs that it is called with.
DEBIAN_PACKAGES = Path(__file__).parent / "e2e/debian_packages.sh"


def needs(program: str) -> pytest.MarkDecorator:
    missing = shutil.which(program) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"{program} is not installed")
