"""The origin of an exported trial: its bundle, its run and its machine, and the marks of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.records.marks import MEANING, Mark, marked_text


@dataclass(frozen=True, slots=True)
class TrialOrigin:
    """The origin of a trial. Its texts come from a bundle, so each exported file escapes them."""

    bundle: str  # name of the file
    sha256: str  # of the file
    run: str
    device: str
    marks: tuple[Mark, ...] = ()  # of the trial's figures

    @property
    def text(self) -> str:
        """Say where the trial was measured, for the first lines of exported files."""
        return f"run {self.run} on {self.device}"

    def marked(self, figure: str) -> str:
        """Return a figure of the trial with the kinds of its marks."""
        return marked_text(figure, (mark.kind for mark in self.marks))

    def warnings(self, plain: Callable[[str], str]) -> Iterator[str]:
        """Yield a sentence for each mark: what was seen, made `plain` for the file, and what it means."""
        for mark in self.marks:
            yield f"{mark.kind}: {plain(mark.text)}: {MEANING[mark.kind]}."
