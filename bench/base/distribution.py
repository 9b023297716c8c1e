"""The name under which pip knows this project, and the command that installs its optional parts."""

from __future__ import annotations

DISTRIBUTION = "bench-appliance"  # the package named "bench" on the public index is another project


def pip_install(extra: str) -> str:
    """Return the command that adds an extra of pyproject.toml, such as "run", to this installation."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
