"""Convert arguments of the library's callers: one or several paths, texts and quantities."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

from bench.base.errors import BadInput, nearest
from bench.base.quantities import NotAQuantity

AnyPath: TypeAlias = str | os.PathLike[str]
AnyPaths: TypeAlias = AnyPath | Iterable[AnyPath]
N = TypeVar("N", int, float)


def path_of(given: AnyPath | None) -> Path | None:
    """Return a path that may be missing as a Path or None."""
    return None if given is None else Path(given)


def paths_of(given: AnyPaths) -> tuple[Path, ...]:
    """Return one or several paths as a tuple."""
    return (Path(given),) if isinstance(given, str | os.PathLike) else tuple(map(Path, given))


def texts_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return one or several texts as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def quantity(name: str, given: N | str, parse: Callable[[str], N]) -> N:
    """Return a number above 0; a text is read by `parse`, which the command's option has too."""
    try:
        if isinstance(given, str):
            return parse(given)
        if isinstance(given, bool) or not math.isfinite(given):
            raise NotAQuantity(f"{given!r} is not a number")
        if given <= 0:
            raise NotAQuantity(f"{given!r} is not more than 0")
        return given
    except NotAQuantity as error:
        raise BadInput(f"{name}: {error}") from None


def share(name: str, given: float | str, parse: Callable[[str], float]) -> float:
    """Return a number above 0 and of at most 1; a text is read by `parse`."""
    value = quantity(name, given, parse)
    if value > 1:
        raise BadInput(f"{name}: {given!r} is more than 1", advice=f'{name}="85%" and 0.85 are the same')
    return value


def choice(name: str, given: str, literal: Any) -> None:
    """Raise BadInput, with the nearest choice, for a text that is not one of a Literal's."""
    if given not in get_args(literal):
        raise BadInput(f"{name} {given}: not a choice", advice=nearest(given, get_args(literal)))
