"""One page in one file: what the report and the page of a node check have in common."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from bench import __version__
from bench.base.errors import EnvironmentCannot

# Nothing is fetched and nothing sent, whatever a bundle's texts may hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, body: str, style: str = "") -> str:
    """The whole document; `style` comes after the style of all pages."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="bench {__version__}">
<title>{escape(title)}</title>
<style>{asset("style.css")}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def asset(name: str) -> str:
    return (files("bench.data") / "report" / name).read_text(encoding="utf-8")


def put(path: Path, html: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # backslashreplace: the names of files need not be UTF-8
        path.write_text(html, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise EnvironmentCannot(f"the report cannot be written: {error.strerror}", where=str(path)) from None
