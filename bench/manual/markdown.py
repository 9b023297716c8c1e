"""Read the Markdown of bench's own documents: sections, tables, links; and plain text of a width. Pure.

Knows what the documents use: headings, paragraphs, lists, tables, code, pictures and links.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from bench.base.terminal import BETWEEN, LEAST_COLUMNS, PADDING, Table, plain_columns, table

HEADING = re.compile(r"(#{1,6}) +(.+)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"( *)([-*]|\d+\.) +(.*)")
FENCE = "```"
INDENT = "    "  # of code


@dataclass(frozen=True, slots=True)
class DocumentSection:
    """A heading of a page with its text, up to the next heading of any level."""

    page: str  # its path below docs/
    level: int
    heading: str
    text: str

    @property
    def anchor(self) -> str:
        """The name of the heading in a link, as GitHub makes it."""
        return re.sub(r"[^\w\- ]", "", inline(self.heading).lower()).replace(" ", "-")

    @property
    def address(self) -> str:
        """The page and the anchor, as a reader of the repository opens them."""
        return f"docs/{self.page}" + (f"#{self.anchor}" if self.level > 1 else "")


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """A table as it is written: heads and cells are Markdown."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(page: str, text: str) -> Iterator[DocumentSection]:
    """Yield the sections of a page in their order."""
    level, heading, lines, in_code = 0, "", list[str](), False
    for line in text.splitlines():
        in_code ^= line.startswith(FENCE)
        found = None if in_code else HEADING.fullmatch(line)
        if found is None:
            lines.append(line)
            continue
        if heading:
            yield DocumentSection(page, level, heading, "\n".join(lines).strip("\n"))
        level, heading, lines = len(found[1]), found[2], []
    if heading:
        yield DocumentSection(page, level, heading, "\n".join(lines).strip("\n"))


def tables(text: str) -> Iterator[DocumentTable]:
    """Yield the tables of a section."""
    for is_table, lines in groupby(_without_code(text), key=lambda line: line.startswith("|")):
        if is_table:
            yield _table(list(lines))


def _without_code(text: str) -> Iterator[str]:
    in_code = False
    for line in text.splitlines():
        in_code ^= line.startswith(FENCE)
        if not in_code:
            yield line


def _table(lines: Sequence[str]) -> DocumentTable:
    heads, _, *rows = (_cells(line) for line in lines)
    return DocumentTable(heads, tuple(rows))


def _cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", inner))


def links(text: str) -> list[str]:
    """Return the targets of the links in a text, each once."""
    return list(dict.fromkeys(target for _, target in LINK.findall(text)))


def inline(text: str) -> str:
    """Return a text without the signs of links, pictures, code and emphasis."""
    text = PICTURE.sub(lambda found: f"(picture: {found[1]})", text)
    pieces = re.split(r"(`[^`]*`)", LINK.sub(lambda found: found[1], text))
    return "".join(
        piece.strip("`") if piece.startswith("`") else re.sub(r"\*\*?([^*\s][^*]*)\*\*?", r"\1", piece)
        for piece in pieces
    )


def plain(text: str, room: int | None) -> str:
    """Return Markdown as plain text whose lines fit `room`; None: every paragraph is one line."""
    width = None if room is None else max(LEAST_COLUMNS, room)
    return "\n\n".join(_block(kind, lines, width) for kind, lines in _blocks(text))


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the kind of each block, and its lines: code, table, list, heading or paragraph."""
    kind, lines = "", list[str]()
    for line in text.splitlines():
        if kind == "code":
            if line.startswith(FENCE):
                yield kind, lines
                kind, lines = "", []
            else:
                lines.append(line)
            continue
        new = _kind(line, kind)
        if new != kind or new == "heading":
            if kind:
                yield kind, lines
            kind, lines = new, []
        if kind and kind != "code":
            lines.append(line)
    if kind:
        yield kind, lines


def _kind(line: str, before: str) -> str:
    if line.startswith(FENCE):
        return "code"
    if line.startswith("|"):
        return "table"
    if HEADING.fullmatch(line):
        return "heading"
    if ITEM.fullmatch(line) or (before == "list" and line.startswith("  ")):
        return "list"
    return "paragraph" if line.strip() else ""


def _block(kind: str, lines: Sequence[str], width: int | None) -> str:
    match kind:
        case "code":
            return "\n".join(
                _filled(INDENT + line, width, INDENT * 2 + line[: len(line) - len(line.lstrip())])
                for line in lines
            )
        case "table":
            return _table_text(_table(lines), width)
        case "heading":
            heading = inline(HEADING.sub(r"\2", lines[0]))
            return f"{_filled(heading, width)}\n{'-' * min(len(heading), width or len(heading))}"
        case "list":
            return "\n".join(_items(lines, width))
        case _:
            return _filled(inline(" ".join(line.strip() for line in lines)), width)


def _table_text(found: DocumentTable, width: int | None) -> str:
    """Format a table; if it is too wide even with its longest words wrapped, format it row by row."""
    heads = [inline(head) for head in found.heads]
    rows = [[inline(cell) for cell in row] for row in found.rows]
    longest = (
        max(map(len, " ".join(column).split()), default=0) for column in zip(heads, *rows, strict=True)
    )
    if width is None or sum(longest) + (PADDING + BETWEEN) * len(heads) <= width:
        return table(Table(plain_columns(heads), rows), room=width)
    return "\n".join(line for row in rows for line in _row_lines(heads, row, width))


def _row_lines(heads: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the first cell of a row, and each other cell on an indented line after its column's head."""
    yield _filled(f"- {row[0]}", width, "  ")
    for head, cell in zip(heads[1:], row[1:], strict=True):
        if cell:
            yield _filled(f"  {head}: {cell}" if head else f"  {cell}", width, INDENT)


def _items(lines: Sequence[str], width: int | None) -> Iterator[str]:
    """Yield the items of a list, each with its continuation lines."""
    items: list[tuple[str, str]] = []
    for line in lines:
        if found := ITEM.fullmatch(line):
            items.append((f"{found[1]}{found[2]} ", found[3]))
        else:
            items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")
    for mark, text in items:
        yield _filled(mark + inline(text), width, " " * len(mark))


def _filled(text: str, width: int | None, indent: str = "") -> str:
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True,
        replace_whitespace=False,
    )  # fmt: skip
