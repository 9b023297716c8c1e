"""Identify the bench image that this process runs in, from its description and from the engine outside.

An image cannot hold its own digest. The engine that starts it computes the digest and passes it in by an
environment variable, without which the image has no identity and its results cannot be reproduced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import IMAGE_VARIABLE
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.records.trial import Image

if TYPE_CHECKING:
    from bench.planning.manifest import Manifest

DESCRIBED = Path("/usr/share/bench/image.json")


def running_in(described: Path = DESCRIBED) -> Image | None:
    """Return the image of this process; None outside an image. BadInput if its description is unreadable."""
    if not described.exists():
        return None
    try:
        fields = _object(described.read_bytes()) | _object(os.environ.get(IMAGE_VARIABLE, "{}").encode())
        fields.pop("schema", None)
        return from_json(Image, fields)
    except DecodeError as error:
        raise BadInput(f"does not say which image this is: {error}", where=IMAGE_VARIABLE) from None


def _object(data: bytes) -> dict[str, Any]:
    value = strict_loads(data)
    if not isinstance(value, dict):
        raise DecodeError("expected an object")
    return value


def require_image(manifest: Manifest, image: Image | None) -> None:
    """Raise EnvironmentCannot if the manifest names an image other than `image`."""
    if manifest.image is None or (image is not None and image.config == manifest.image):
        return
    here = (image.config or "an image of unknown identity") if image else "not an image of bench"
    raise EnvironmentCannot(
        f"the manifest asks for the image {manifest.image}; this is {here}",
        advice="bench run --engine docker --image REF passes the image its identity; "
        "or remove `image` from the manifest: results are then not reproducible",
    )
