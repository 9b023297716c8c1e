"""Identify the locked environment that this process runs in, which environment/confined.py has checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import ENVIRONMENT_VARIABLE
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.records.trial import Environment

if TYPE_CHECKING:
    from bench.planning.manifest import Manifest


def environment_here(variables: Mapping[str, str], prefix: str = sys.prefix) -> Environment | None:
    """Return the environment of this process; None outside one. BadInput if its description is unreadable.

    A variable that was left over in another Python describes nothing: the folder that Python runs from must
    have the environment's digest as its name.
    """
    described = variables.get(ENVIRONMENT_VARIABLE)
    if described is None:
        return None
    try:
        found = from_json(Environment, strict_loads(described))
    except DecodeError as error:
        raise BadInput(
            f"does not say which environment this is: {error}", where=ENVIRONMENT_VARIABLE
        ) from None
    return found if Path(prefix).name == found.digest.removeprefix("sha256:") else None


def require_environment(manifest: Manifest, environment: Environment | None) -> None:
    """Raise EnvironmentCannot if the manifest names an environment other than `environment`."""
    if manifest.environment is None:
        return
    if environment is not None and environment.digest == manifest.environment:
        return
    here = f"this is {environment.digest}" if environment else "this is none"
    raise EnvironmentCannot(
        f"the manifest asks for the environment {manifest.environment}; {here}",
        advice="bench push MANIFEST HOST --engine venv, or remove `environment` from the manifest",
    )
