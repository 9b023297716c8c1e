"""What arguments of the command line are made of. Imports nothing that is slow."""

from __future__ import annotations

import argparse
import math
import sys
from typing import NoReturn

from bench.base.errors import BadInput

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


class Parser(argparse.ArgumentParser):
    """Says what is wrong as an error of ours, which a program can read too."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise BadInput(message, where=self.prog)


class Mixed(Parser):
    """Takes what it is about behind options, too: push m.json --budget 60m gpu1"""

    _inside = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if self._inside:
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


def is_host_and_port(text: str) -> bool:
    """As a place to meet at; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def positive(text: str) -> float:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not more than 0")
    return number


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def percent(text: str) -> float:
    number = positive(text.rstrip("%"))
    if number > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100%")
    return number / 100


def days(text: str) -> float:
    """Days from 14, 14d, 36h."""
    return positive(text[:-1]) / 24 if text.endswith("h") else positive(text.removesuffix("d"))


def duration(text: str) -> float:
    """Seconds from 90s, 60m, 2h, 7d."""
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * (scale or 0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 60m, 2h or 7d")
    return seconds
