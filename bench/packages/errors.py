"""The errors that a download may raise."""

from __future__ import annotations


class CannotDownload(Exception):
    """No download is possible on this machine until its user changes the configuration."""

    def __init__(self, message: str, *, where: str, advice: str) -> None:
        super().__init__(f"{where}: {message}; {advice}")
        self.message, self.where, self.advice = message, where, advice


class Paused(Exception):
    """The time for this round of downloads is over. Partial files are kept; the next round continues them."""


class NotFetched(Exception):
    """No place gave a file with an accepted digest; the text says what each place gave."""
