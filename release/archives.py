"""Reading of tar archives with every Python that the project supports."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract_all(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive without files outside of the folder; Python before 3.11.4 has no such filter."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
