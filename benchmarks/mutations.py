"""Find the small changes that a mutation tester makes in a module's source, and draw some of them. Pure.

In: the source of a module. Out: `Mutant`s, each the whole source with one change. Left as they are: type
annotations, docstrings, decorators, imports, assertions, encodings of files, texts with a blank (they are for
readers), what a `raise` says, and what only a type checker executes.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

MODULE = "the module"  # stands for the function of a change outside all functions
_HERE = "_here_"
_CONTEXT = 60  # characters of a statement that are shown on each side of a change
_NO_CODE = {"annotation", "returns", "decorator_list", "bases", "type_comment", "pattern"}
_NAMES_A_TYPE = {"cast", "TypeVar", "NewType"}

_Node = TypeVar("_Node", bound=ast.AST)
_NEGATED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_SWAPPED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip
_AT_THE_BOUNDARY: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_OTHER_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module's source with one change, and where the change is."""

    line: int  # of the unchanged source
    function: str  # its qualified name, or MODULE
    change: str  # the statement or a part of it, with [before => after] in it
    source: str


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a node in the tree: a field of its parent, or one element of a field that is a list."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    @property
    def is_condition(self) -> bool:
        return self.field in ("test", "ifs", "guard")


@dataclass(frozen=True, slots=True)
class _Around:
    """The surroundings of a node in the tree."""

    function: str
    statement: ast.AST
    may_return_none: bool = False

    def entering(self, node: ast.AST) -> _Around:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name if self.function == MODULE else f"{self.function}.{node.name}"
            returns = None if isinstance(node, ast.ClassDef) else node.returns
            return _Around(name, node, returns is not None and _allows_none(returns))
        if isinstance(node, ast.stmt | ast.match_case):
            return replace(self, statement=node)
        return self


@dataclass(frozen=True, slots=True)
class Change:
    """A possible change: of one node into another."""

    slot: _Slot
    before: ast.AST
    after: ast.AST
    around: _Around

    @property
    def text(self) -> str:
        """The statement with [before => after] in it, on one line; of a long one, the nearest part."""
        after = "" if isinstance(self.after, ast.keyword) else _one_line(self.after)
        small = f"[{_one_line(self.before)} => {after}]"
        if isinstance(self.before, ast.stmt):
            return small
        self.slot.put(ast.Name(_HERE) if isinstance(self.before, ast.expr) else _keywords_of(_HERE))
        statement = _header(self.around.statement).replace(f"**{_HERE}", _HERE)
        self.slot.put(self.before)
        left, _, right = statement.partition(_HERE)
        return _end(left) + small + _end(right[::-1])[::-1]

    def made_in(self, tree: ast.Module) -> Mutant:
        """Return the mutant of this change; the tree is afterwards as it was."""
        self.slot.put(self.after)
        source = ast.unparse(tree)
        self.slot.put(self.before)
        line = getattr(self.before, "lineno", 0)
        return Mutant(line, self.around.function, self.text, source)


def changes(tree: ast.Module) -> Iterator[Change]:
    """Yield every possible change of a module, in the order of the source."""
    for slot, node, around in _nodes(tree, _Around(MODULE, tree)):
        text = ast.unparse(node)
        seen = {text}
        for after in _replacements(node, slot, around):
            if (other := ast.unparse(ast.fix_missing_locations(after))) not in seen:
                seen.add(other)
                yield Change(slot, node, after, around)


def draw(source: str, count: int, seed: str) -> list[Mutant]:
    """Return mutants drawn at random; those of a smaller count are the first of a larger one."""
    tree = ast.parse(source)
    possible = list(changes(tree))
    random.Random(seed).shuffle(possible)
    return [change.made_in(tree) for change in possible[:count]]


def _nodes(parent: ast.AST, around: _Around) -> Iterator[tuple[_Slot, ast.AST, _Around]]:
    """Yield the nodes below a node that may be changed."""
    for field, value in ast.iter_fields(parent):
        if field in _NO_CODE:
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _is_left_alone(parent, child):
                inside = around.entering(child)
                yield _Slot(parent, field, index if isinstance(value, list) else None), child, inside
                if not isinstance(child, ast.Raise):
                    yield from _nodes(child, inside)


def _is_left_alone(parent: ast.AST, node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Constant(value=str() as text):
            return " " in text or _is_name_of_a_type(parent, node)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
            return True
        case ast.Subscript(value=ast.Name(id=name)):  # Literal["buy"], Sequence[int], but not LIMITS["buy"]
            return name[0].isupper() and not name.isupper()
        case ast.keyword(arg="strict"):  # of zip: a guard against our own mistakes
            return True
        case ast.keyword(arg="encoding"):  # UTF-8, which is the default where tests run
            return True
    return False


def _is_name_of_a_type(parent: ast.AST, node: ast.Constant) -> bool:
    match parent:
        case ast.Call(func=ast.Name(id=called), args=[first, *_]):
            return called in _NAMES_A_TYPE and first is node
    return False


def _replacements(node: ast.AST, slot: _Slot, around: _Around) -> Iterator[ast.AST]:
    if slot.is_condition and isinstance(node, ast.expr):
        yield from _other_conditions(node, slot)
    if isinstance(slot.parent, ast.Return) and around.may_return_none:
        yield ast.Constant(None)
    match node:
        case ast.Compare():
            yield from _other_comparisons(node)
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for dropped in range(len(values)):
                left = values[:dropped] + values[dropped + 1 :]
                yield left[0] if len(left) == 1 else _with(node, values=left)
        case ast.BinOp(left=left, right=right) if _is_text(left) or _is_text(right):
            pass  # nothing but + and % is possible
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _OTHER_ARITHMETIC:
            yield _with(node, op=_OTHER_ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=value):
            yield from (_with(node, value=other) for other in _other_values(value))
        case ast.Slice(lower=lower, upper=upper):
            yield from [_with(node, lower=None)] if lower else []
            yield from [_with(node, upper=None)] if upper else []
        case ast.Call(func=ast.Name(id=name)) if name in _OTHER_FUNCTION:
            yield _with(node, func=ast.Name(_OTHER_FUNCTION[name]))
        case ast.keyword(arg=str()):
            yield _keywords_of("{}")
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _other_conditions(test: ast.expr, slot: _Slot) -> Iterator[ast.expr]:
    if not isinstance(slot.parent, ast.While):  # it would never end
        yield ast.Constant(True)
    yield ast.Constant(False)
    if not isinstance(test, ast.Compare | ast.UnaryOp):  # these are negated by their own changes
        yield ast.UnaryOp(ast.Not(), test)


def _other_comparisons(node: ast.Compare) -> Iterator[ast.expr]:
    for number, op in enumerate(node.ops):
        for table in (_NEGATED, _AT_THE_BOUNDARY, _SWAPPED):
            if other := table.get(type(op)):
                yield _with(node, ops=[*node.ops[:number], other(), *node.ops[number + 1 :]])


def _other_values(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value)
    elif isinstance(value, float):
        yield 2 * value or 1.0
    elif isinstance(value, str | bytes):
        yield type(value)()


def _is_text(node: ast.expr) -> bool:
    match node:
        case (
            ast.JoinedStr() | ast.Constant(value=str() | bytes()) | ast.Call(func=ast.Attribute(attr="join"))
        ):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
    return False


def _keywords_of(mapping: str) -> ast.keyword:
    """Return **mapping, or nothing for an empty mapping, which adds no arguments to a call."""
    return ast.keyword(arg=None, value=ast.parse(mapping, mode="eval").body)


def _allows_none(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Constant(value=None):
            return True
        case ast.BinOp(left=left, right=right):
            return _allows_none(left) or _allows_none(right)
    return False


def _with(node: _Node, **changed: object) -> _Node:
    other = copy.copy(node)
    for field, value in changed.items():
        setattr(other, field, value)
    return other


def _end(text: str) -> str:
    return text if len(text) <= _CONTEXT else f"...{text[-_CONTEXT:]}"


def _header(statement: ast.AST) -> str:
    """Return a statement on one line, without the statements inside it."""
    if hasattr(statement, "body"):
        empty: dict[str, object] = {"orelse": [], "finalbody": [], "decorator_list": []}
        kept = {field: value for field, value in empty.items() if hasattr(statement, field)}
        statement = _with(statement, body=[ast.Pass()], **kept)
    return _one_line(statement).removesuffix(" pass")


def _one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
