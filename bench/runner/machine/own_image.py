"""Which image this is: what it says of itself, and the identity that the engine outside found and told.

An image cannot hold its own digest. Whoever starts it computes the digest and passes it in; a run that was
told none, or that is in no image of ours, has no identity and is no reproduction of anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import IMAGE_VARIABLE
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.planning.manifest import Manifest
from bench.records.trial import Image

DESCRIBED = Path("/usr/share/bench/image.json")


def running_in(described: Path = DESCRIBED) -> Image | None:
    if not described.exists():
        return None
    try:
        fields = _object(described.read_bytes()) | _object(os.environ.get(IMAGE_VARIABLE, "{}").encode())
        fields.pop("schema", None)
        return from_json(Image, fields)
    except DecodeError as error:
        raise BadInput(f"does not say which image this is: {error}", where=IMAGE_VARIABLE) from None


def _object(data: bytes) -> dict[str, Any]:
    found = strict_loads(data)
    if not isinstance(found, dict):
        raise DecodeError("expected an object")
    return found


def require_image(manifest: Manifest, image: Image | None) -> None:
    """A manifest that names its image runs in that image, or not at all."""
    if manifest.image is None or (image is not None and image.config == manifest.image):
        return
    here = (
        "this is no image of bench"
        if image is None
        else f"this is {image.config or 'an image of unknown identity'}"
    )
    raise EnvironmentCannot(
        f"the manifest asks for the image {manifest.image}; {here}",
        advice="bench run --engine docker --image REF tells the image its identity; "
        "or take `image` out of the manifest, and call no result reproducible",
    )
