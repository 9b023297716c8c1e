"""Documents become pages: links lead to places of the site, code stays as it is, lists keep their levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.errors import BadInput
from website.lists import widened
from website.sources import ROOT, Sources, documents, fences, heading, place_of, slug


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for name in ("docs/adr", "bench/data/schema", "manifests", "ansible"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("docs/README.md", "docs/trust.md", "docs/verify.py", "manifests/hour.json", "README.md",
                 "bench/data/schema/manifest-v1.json", "ansible/README.md"):  # fmt: skip
        (tmp_path / name).write_text("# Title\n")
    return Sources(tmp_path)


def page(sources: Sources, text: str, source: str = "docs/guide.md") -> str:
    (sources.root / source).write_text(text)
    return sources.page(source)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[trust](trust.md#levels)", "[trust](trust.md#levels)"),
        ("[all](README.md)", "[all](contents.md)"),
        ("[start](../README.md#try-it)", "[start](index.md#try-it)"),
        ("[Ansible](../ansible/README.md)", "[Ansible](ansible.md)"),
        ("[hour](../manifests/hour.json)", "[hour](files/manifests/hour.json)"),
        ("[schema](../bench/data/schema/manifest-v1.json)", "[schema](schemas/manifest-v1.json)"),
        ("[a program](verify.py)", "[a program](verify.py)"),
        ("[decisions](adr)", "[decisions](adr/index.md)"),
        ("a [folder](../manifests) here", "a folder here"),
        ("[out](https://example.org/a), [here](#there)", "[out](https://example.org/a), [here](#there)"),
        ("[`code` in a link](trust.md)", "[`code` in a link](trust.md)"),
        ("`[no](../nowhere.md)` and ``[no](`../x`)``", "`[no](../nowhere.md)` and ``[no](`../x`)``"),
        ("| `a \\| b` | c \\| d |", "| `a | b` | c \\| d |"),
        ("```\n[no](nowhere.md)\n```", "```\n[no](nowhere.md)\n```"),
    ],
)  # fmt: skip
def test_links_lead_to_where_things_are_in_the_site(sources: Sources, written: str, shown: str) -> None:
    assert page(sources, written) == shown


def test_links_are_relative_to_the_page(sources: Sources) -> None:
    assert page(sources, "[a](../trust.md)", "docs/adr/0001-a.md") == "[a](../trust.md)"
    assert page(sources, "[a](../../README.md)", "docs/adr/0001-a.md") == "[a](../index.md)"
    assert page(sources, "[a](docs/trust.md)", "README.md") == "[a](trust.md)"


@pytest.mark.parametrize("target", ["nowhere.md", "../../outside.md", "../manifests/none.json"])
def test_a_link_that_leads_nowhere_is_refused_with_its_document(sources: Sources, target: str) -> None:
    with pytest.raises(BadInput) as refused:
        page(sources, f"[x]({target})")
    assert refused.value.where == "docs/guide.md"
    assert target in str(refused.value)


def test_linked_files_are_copied_and_others_are_not(sources: Sources, tmp_path: Path) -> None:
    page(sources, "[hour](../manifests/hour.json), [trust](trust.md), [all](../README.md)")
    sources.copy_linked(tmp_path / "out")
    copied = [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")]
    assert copied == ["files/manifests/hour.json"]


def test_commands_are_told_from_output(sources: Sources) -> None:
    text = "```\nbench plan m.json  # here\n```\n\n```\nbench: no such command\n```\n\n```json\n{}\n```\n"
    assert [language for language, _ in fences(text)] == ["sh", "text", "json"]
    shown = page(sources, text)
    assert [line for line in shown.splitlines() if line.startswith("```")] == [
        "```sh",
        "```",
        "```",
        "```",
        "```json",
        "```",
    ]


def test_each_term_of_the_glossary_has_an_anchor() -> None:
    shown = Sources().page("docs/glossary.md")
    assert '| <span id="micro-batch">micro-batch</span> | ' in shown
    assert shown.count('<span id="') > 60
    assert "<span" not in "".join(line for line in shown.splitlines() if line.startswith(("| term", "|---")))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("- a\n  - b\n    - c\n- d", "- a\n    - b\n        - c\n- d"),
        ("1. a\n   - b\n     more\n2. c", "1. a\n    - b\n        more\n2. c"),
        ("- a\n  more\n\n  another\n\nout", "- a\n    more\n\n    another\n\nout"),
        ("- a\n\n  ```\n    x\n  ```\n- b", "- a\n\n    ```\n      x\n    ```\n- b"),
        ("text\n  indented\n", "text\n  indented\n"),
        ("```\n- a\n  - b\n```", "```\n- a\n  - b\n```"),
    ],
)
def test_lists_keep_their_levels(written: str, shown: str) -> None:
    assert widened(written) == shown


def test_every_document_has_a_title_and_a_place_of_its_own() -> None:
    places = [place_of(source) for source in documents()]
    assert len(places) == len(set(places)) > 60
    assert all(heading((ROOT / source).read_text(encoding="utf-8")) for source in documents())
    with pytest.raises(BadInput):
        heading("no title")


def test_anchors_are_those_of_the_forge() -> None:
    assert slug("What `bench run` does, and when (briefly)") == "what-bench-run-does-and-when-briefly"
