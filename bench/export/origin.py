"""Where an exported trial comes from: which bundle, which run, which machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialOrigin:
    """All of it may be a stranger's text: each file escapes it for its own language."""

    bundle: str  # name of the file
    sha256: str  # of the file
    run: str
    device: str

    @property
    def text(self) -> str:
        return f"run {self.run} on {self.device}"
