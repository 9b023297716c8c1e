"""What a download may raise."""

from __future__ import annotations


class CannotDownload(Exception):
    """This machine can download nothing before its user has changed something."""

    def __init__(self, message: str, *, where: str, advice: str) -> None:
        super().__init__(f"{where}: {message}; {advice}")
        self.message, self.where, self.advice = message, where, advice


class Paused(Exception):
    """The time for this round of downloads is over. What has arrived is kept, and continued later."""


class NotFetched(Exception):
    """No place gave a file with an accepted digest; the text says what was found in its stead."""
