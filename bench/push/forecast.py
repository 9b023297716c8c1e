"""How long it takes to bring a run's software to a node, said before it begins. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.base.sizes import size_text
from bench.records.text import seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Bytes that an engine lacks on a node, and the lines that they take."""

    what: str  # as in "the image cpu"
    send_bytes: int = 0  # over the operator's line
    download_bytes: int = 0  # from the node's package index
    up_bytes_per_second: float | None = None  # None: not measured
    down_bytes_per_second: float | None = None
    install_seconds: float = 0.0
    why_sent: str = ""  # why the node does not download what is sent
    at_most: bool = False  # whether the node may yet assemble layers in place of receiving them

    @property
    def seconds(self) -> float | None:
        """Expected seconds; None if a line that is needed was not measured."""
        total = self.install_seconds
        for count, rate in (
            (self.send_bytes, self.up_bytes_per_second),
            (self.download_bytes, self.down_bytes_per_second),
        ):
            if count and not rate:
                return None
            total += count / rate if rate else 0.0
        return total

    @property
    def sentence(self) -> str:
        """A sentence for the user: the bytes that go to the node, and the time that this takes."""
        if not (self.send_bytes or self.download_bytes or self.install_seconds):
            return f"{self.what} is there already"
        bound = "at most " if self.at_most else "about "
        parts = []
        if self.download_bytes:
            parts.append(f"{size_text(self.download_bytes)} from the node's own index"
                         f"{_speed(self.down_bytes_per_second)}")  # fmt: skip
        if self.send_bytes:
            why = f" ({self.why_sent})" if self.why_sent else ""
            parts.append(f"{bound if self.at_most else ''}{size_text(self.send_bytes)} over SSH"
                         f"{_speed(self.up_bytes_per_second)}{why}")  # fmt: skip
        seconds = self.seconds
        time = f"{bound}{seconds_text(seconds)}" if seconds is not None else "how long is unknown"
        lines = [" and ".join(parts)] if parts else []
        return f"{', '.join([self.what, *lines])}: {time}"


def _speed(rate: float | None) -> str:
    return f" at {8 * rate / 1e6:.3g} Mbit/s" if rate else ""
