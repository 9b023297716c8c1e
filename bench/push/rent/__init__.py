"""Files for programs that rent machines: they rent one, measure a manifest there, and give it back. Pure.

Each program is a module with `TOOL`. No file has a password or token: the programs have their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

from bench.push.rent.rental import Rental


class RentalTool(Protocol):
    """A program that rents machines."""

    file_name: str

    def text(self, rental: Rental) -> str:
        """Return the text of the program's file, in whose folder are the manifest and bench's code."""

    def commands(self, rental: Rental) -> Mapping[str, str]:
        """Return the commands, run in the file's folder, that `rent`, `fetch` and `give_back`."""


def find_tool(name: str) -> RentalTool:
    """Import the module of a program in RENTAL_TOOLS and return its `TOOL`."""
    tool: RentalTool = importlib.import_module(f"bench.push.rent.{name}").TOOL
    return tool
