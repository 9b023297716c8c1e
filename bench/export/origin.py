"""The origin of an exported trial: its bundle, its run and its machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialOrigin:
    """The origin of a trial. Its texts come from a bundle, so each exported file escapes them."""

    bundle: str  # name of the file
    sha256: str  # of the file
    run: str
    device: str

    @property
    def text(self) -> str:
        """Say where the trial was measured, for the first lines of exported files."""
        return f"run {self.run} on {self.device}"
