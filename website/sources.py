"""Map files of the repository to pages, and convert their Markdown to that of the page.

The documents are written for the forge. A link to a file outside of docs/ leads to a copy of the file, and a
link to a folder that is no page becomes text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.base.errors import BadInput
from website.lists import widened

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
# Documents whose page is not where they lie below docs/.
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ansible/README.md": "ansible.md",
}
LISTED = ("docs/adr", "docs/evidence", "docs/pictures")  # folders that get a page with a list of their files
SCHEMAS = "bench/data/schema"
# Programs with which a line of shell begins; other blocks without a language are output.
PROGRAMS = frozenset(
    (
        "bench", "make", "pip", "python", "python3", "python3.12", "openssl", "ssh-keygen", "cosign",
        "kubectl", "helm", "sed", "cp", "mkdir", "tail", "install", "systemctl", "sha256sum", "tar",
        "ansible-playbook", "ansible-galaxy", "echo", "BENCH_FAKE_NVML=machine.json", "TZ=UTC", "{",
        ".venv/bin/pre-commit",
    )
)  # fmt: skip

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_CODE_OR_LINK = re.compile(
    r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^()\s]+)\)"
)


def documents(root: Path = ROOT) -> list[str]:
    """Return the documents that become pages, as paths below the root."""
    below = (path.relative_to(root).as_posix() for path in sorted((root / DOCS).rglob("*.md")))
    return list(dict.fromkeys([*PLACES, *below]))


def place_of(path: str, root: Path = ROOT) -> str | None:
    """Return where a file of the repository is in the site; None for a folder that is no page."""
    if path in PLACES:
        return PLACES[path]
    if path in LISTED:
        return f"{path.removeprefix('docs/')}/index.md"
    if (root / path).is_dir():
        return None
    if path.startswith(f"{SCHEMAS}/"):
        return f"schemas/{posixpath.basename(path)}"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the lines of each block of code."""
    for found in _FENCE.finditer(text):
        yield found["language"] or ("sh" if is_shell(found["body"]) else "text"), found["body"]


def is_shell(body: str) -> bool:
    """Whether a block of code without a language has commands to type, rather than what a program printed."""
    first = body.split(maxsplit=1)[0] if body.strip() else ""
    return first in PROGRAMS and not re.match(r"bench: |bench/", body)


@dataclass(slots=True)
class Sources:
    """The documents as pages, and the files outside of docs/ to which they link."""

    root: Path = ROOT
    linked: set[str] = field(default_factory=set)

    def page(self, source: str) -> str:
        """Return the Markdown of a document's page."""
        text = widened((self.root / source).read_text(encoding="utf-8"))
        if source == "docs/glossary.md":
            text = with_anchors(text)
        parts, end = [], 0
        for fence in _FENCE.finditer(text):
            parts += [self._linked_text(source, text[end : fence.start()]), _labelled(fence)]
            end = fence.end()
        return "".join([*parts, self._linked_text(source, text[end:])])

    def copy_linked(self, folder: Path) -> None:
        """Copy the files outside of docs/ that pages link to into the site's folder."""
        for path in sorted(self.linked):
            place = folder / str(place_of(path, self.root))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, place)

    def _linked_text(self, source: str, text: str) -> str:
        return _CODE_OR_LINK.sub(lambda found: self._link(source, found), text)

    def _link(self, source: str, found: re.Match[str]) -> str:
        target = found["target"]
        if (
            target is None
        ):  # code; in a table the forge wants \\| for a bar, and Python-Markdown shows what it reads
            return found[0].replace("\\|", "|")
        if target.startswith(("#", "https://", "http://", "mailto:")):
            return found[0]
        name, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if path.startswith("..") or not (self.root / path).exists():
            raise BadInput(f"a link leads to {target}, which does not exist", where=source)
        place = place_of(path, self.root)
        if place is None:
            return found["text"]
        if not path.startswith("docs/") and path not in PLACES:
            self.linked.add(path)
        here = posixpath.dirname(str(place_of(source, self.root)))
        return f"{found['image']}[{found['text']}]({posixpath.relpath(place, here or '.')}{hash_}{anchor})"


def _labelled(fence: re.Match[str]) -> str:
    """Return a block of code with its language, so that comments of commands are coloured."""
    if fence["language"] or not is_shell(fence["body"]):
        return fence[0]
    return fence[0].replace("```\n", "```sh\n", 1)


def with_anchors(text: str) -> str:
    """Give every term of the glossary's tables an anchor, so that a link can lead to it."""
    return re.sub(r"^\| (?!term |---)([^|]+?) \|", _anchored, text, flags=re.MULTILINE)


def _anchored(row: re.Match[str]) -> str:
    return f'| <span id="{slug(row[1])}">{row[1]}</span> |'


def slug(title: str) -> str:
    """Return the anchor that a forge gives a title: small letters, digits and hyphens."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def heading(text: str) -> str:
    """Return the title of a document, without its mark-up."""
    first = next((line for line in text.splitlines() if line.startswith("# ")), None)
    if first is None:
        raise BadInput("the document has no title: begin it with a line '# TITLE'")
    return first.removeprefix("# ").replace("`", "")


Rendered = Callable[[], dict[str, str]]
