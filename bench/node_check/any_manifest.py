"""Load a manifest of either kind: models to train, or a node check."""

from __future__ import annotations

from pathlib import Path

from bench.node_check import check_manifest as node_check
from bench.node_check.check_manifest import CheckManifest
from bench.planning.manifest import Manifest, parse_manifest, read_manifest

AnyManifest = Manifest | CheckManifest


def wanted_image(manifest: AnyManifest) -> str | None:
    """The image that the manifest prescribes, if any; a node check prescribes none."""
    return None if isinstance(manifest, CheckManifest) else manifest.image


def load_any(path: Path) -> AnyManifest:
    data = read_manifest(path)
    return (node_check.parse if node_check.is_check(data) else parse_manifest)(data, str(path))
