"""Compare two sources of a module: which functions would have other code? Pure.

Processes that have imported the module can then give its functions the other code, in place of importing the
module again and collecting all tests that import it.
"""

from __future__ import annotations

import base64
import inspect
import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class ChangedFunction:
    """A function of an imported module, and the code that it would have."""

    file: str
    name: str  # qualified
    line: int  # the first one, of the unchanged source
    code: str  # marshalled, in base64


def changed_functions(file: str, before: str, after: str) -> list[ChangedFunction] | None:
    """Return the functions that differ, with those around them, or None where more than functions differ.

    Code that only an import executes would keep what it made: constants, classes, default arguments. A
    function that exists already keeps the variables of functions around it, too.
    """
    found: list[ChangedFunction] = []
    old, new = (compile(source, file, "exec", dont_inherit=True) for source in (before, after))
    for one, other in _pairs(old, new):
        if _differs(one, other) and (not _is_function(one) or one.co_freevars != other.co_freevars):
            return None
        if _is_function(one) and any(_differs(*pair) for pair in _pairs(one, other)):
            code = base64.b64encode(marshal.dumps(other)).decode()
            found.append(ChangedFunction(file, one.co_qualname, one.co_firstlineno, code))
    return found


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code objects of two sources side by side, outer ones first.

    If one of two has more code inside it than the other, they differ themselves, and what is inside has no
    pair.
    """
    yield old, new
    inside = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new)]
    if len(inside[0]) == len(inside[1]):
        for one, other in zip(*inside, strict=True):
            yield from _pairs(one, other)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)  # the bodies of modules and classes are not


def _differs(old: CodeType, new: CodeType) -> bool:
    """Tell whether two code objects differ in more than their lines and the code inside them."""
    return _own(old) != _own(new)


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [
        "code" if isinstance(each, CodeType) else (type(each), repr(each)) for each in code.co_consts
    ]
    return (
        code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        code.co_flags, code.co_exceptiontable, code.co_argcount,
    )  # fmt: skip
