"""Indexes, folders of links and mirrors list files, as this machine's settings name them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.packages import package_index
from bench.packages.errors import Paused
from bench.packages.package_index import OfferedFile, PackageFile, PackageIndex, normal
from bench.packages.pip_settings import PipSettings
from tests.packages.web import DATA, JSON, NAME, PAGE, WHEEL, Web


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_AGAIN_SECONDS", 0.0)


def page_of(*files: object) -> bytes:
    return json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode()


def offered(web: Web) -> list[OfferedFile]:
    """Return the files that an index offers of the project, from a page that must be whole."""
    index = PackageIndex(PipSettings((web.simple,)))
    files = index.files("thing")
    assert index.troubles == ()
    return files


# --- pages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["html", "json", "index", "path", "links", "link", "page", "local page"])
def test_pages_of_html_and_of_json_and_folders_list_the_same_file(
    web: Web, tmp_path: Path, form: str
) -> None:
    web.publish()
    web.pages |= {"/json/thing/": page_of({"url": f"/files/{NAME}", "hashes": {"sha256": WHEEL.sha256}})}
    web.kinds["/json/thing/"] = JSON
    (tmp_path / "in/thing").mkdir(parents=True)
    (tmp_path / "in/thing" / NAME).write_bytes(DATA)
    (tmp_path / "page.html").write_bytes(web.pages[PAGE].replace(b"../..", web.url.encode()))
    settings = {
        "html": PipSettings((web.simple,)),
        "json": PipSettings((f"{web.url}/json/",)),
        "index": PipSettings(((tmp_path / "in").as_uri(),)),
        "path": PipSettings((str(tmp_path / "in"),)),
        "links": PipSettings((), (str(tmp_path / "in/thing"),)),
        "link": PipSettings((), ((tmp_path / "in/thing").as_uri(),)),
        "page": PipSettings((), (f"{web.simple}/thing/",)),
        "local page": PipSettings((), (str(tmp_path / "page.html"),)),
    }
    index = PackageIndex(settings[form])
    (file,) = index.files("thing")
    assert file.name == NAME
    assert file.sha256 == (None if form in ("index", "path", "links", "link") else WHEEL.sha256)
    assert index.size(file) == len(DATA)
    with index.open(file.url) as opened:
        assert opened.read() == DATA
    assert index.files("another") in ([], [file])
    assert index.troubles == ()


def test_a_folder_has_its_files_and_those_that_its_page_links_to(web: Web, tmp_path: Path) -> None:
    web.publish()
    (tmp_path / NAME).write_bytes(DATA)
    (tmp_path / "index.html").write_text(f'<a href="{web.url}/files/{NAME}#sha256={WHEEL.sha256}">')
    files = PackageIndex(PipSettings((), (str(tmp_path),))).files("thing")
    assert [file.url for file in files if file.name == NAME] == [
        (tmp_path / NAME).as_uri(), f"{web.url}/files/{NAME}"
    ]  # fmt: skip


def test_the_size_that_an_index_states_is_not_asked_for(web: Web) -> None:
    web.pages[PAGE] = page_of({"url": "/files/a.whl", "hashes": {}, "size": 17}, {"url": "/files/b.whl"})
    web.kinds[PAGE] = JSON
    index = PackageIndex(PipSettings((web.simple,)))
    stated, unknown = index.files("thing")
    assert (index.size(stated), stated.sha256) == (17, None)
    assert index.size(unknown) is None
    assert web.paths == [PAGE, "/files/b.whl"]


def test_links_of_all_forms_are_read(web: Web) -> None:
    digest = WHEEL.sha256
    web.pages[PAGE] = (
        f"""<a data-x="&gt;=3" HREF = '/a%2B1.whl#egg=a&sha256={digest.upper()}'>a</a>"""
        f"""<a href="b.whl#sha256=12">"""
        f"""<a href="/c.whl?x=1&amp;y=2#sha256={digest}0"><abbr href="/no.whl"><a name="x">"""
    ).encode()
    assert offered(web) == [
        OfferedFile(f"{web.url}/a%2B1.whl", digest),
        OfferedFile(f"{web.simple}/thing/b.whl", None),
        OfferedFile(f"{web.url}/c.whl?x=1&y=2", None),
    ]
    assert offered(web)[0].name == "a+1.whl"


def test_the_name_of_a_file_is_no_path() -> None:
    assert OfferedFile("http://host/x/..%2F..%2Fetc%2Fpasswd", None).name == "passwd"


def test_files_are_offered_by_digest_first_and_then_by_their_name(web: Web, second: Web) -> None:
    web.publish(sha256=None)
    web.publish(name="other-1.0-py3-none-any.whl", sha256=None)
    second.publish(sha256="0" * 64)
    second.publish(name="renamed.whl")
    index = PackageIndex(PipSettings((web.simple, second.simple)))
    assert [file.url for file in index.offers(WHEEL)] == [
        f"{second.url}/files/renamed.whl",
        f"{web.url}/files/{NAME}",
    ]
    deb = PackageFile("t/t/t_1_all.deb", WHEEL.sha256, None)
    mirrors = PackageIndex(PipSettings(()), ("http://m/debian",))
    assert [file.url for file in mirrors.offers(deb)] == ["http://m/debian/pool/main/t/t/t_1_all.deb"]


# --- indexes that lie, break or stall -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "asked", "why"),
    [
        (503, 2, "503 Service Unavailable"),
        (401, 1, "401 Unauthorized, it asks for another user name or password"),
        (429, 1, "429 Too Many Requests"),
    ],
)
def test_an_index_that_does_not_answer_is_named_once_and_not_asked_again(
    web: Web, code: int, asked: int, why: str
) -> None:
    """A page is asked for twice if the second answer may be another."""
    web.refusals[PAGE] = code
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") == index.files("b") == []
    assert index.troubles == (f"{web.simple}: {why}",)
    assert web.paths == [PAGE] * asked
    silent = PackageIndex(PipSettings(("http://127.0.0.1:1/simple",)))
    assert silent.files("a") == []
    assert "refused" in silent.troubles[0]


def test_an_index_that_forbids_a_page_is_named_unless_it_has_others(web: Web) -> None:
    """An index on S3 forbids the pages of projects that it does not have: PyTorch's is one."""
    web.publish()
    web.refusals["/simple/a/"] = 403
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("a") == []
    assert index.troubles == (f"{web.simple}: 403 Forbidden, it asks for another user name or password",)
    assert [file.name for file in index.files("thing")] == [NAME]
    assert index.troubles == ()


@pytest.mark.parametrize("code", [401, 500])
def test_an_index_that_has_answered_is_asked_on_after_an_error_of_one_page(web: Web, code: int) -> None:
    web.publish()
    web.refusals["/simple/a/"] = code
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") and index.files("a") == [] and index.files("thing")
    assert index.troubles == ()


@pytest.mark.parametrize("code", [None, 500])
def test_a_page_that_broke_off_is_asked_for_again(web: Web, code: int | None) -> None:
    web.publish()
    web.cut_after = 20 if code is None else None
    web.refusals = {PAGE: code} if code else {}

    def recover() -> None:
        if len(web.asked) > 1:
            web.cut_after, web.refusals = None, {}

    web.answering = recover
    assert [file.name for file in offered(web)] == [NAME]
    assert web.paths == [PAGE, PAGE]


def test_a_page_that_always_breaks_off_is_no_short_page(web: Web) -> None:
    web.publish()
    web.cut_after = len(web.pages[PAGE]) - 1
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") == []
    assert index.troubles == (f"{web.simple}: the connection broke",)


@pytest.mark.parametrize(
    "page",
    [
        b"[1]", b"{}", b'{"files": 3}', b'{"files": [3]}', b'{"files": [{"hashes": {}}]}',
        b'{"files": [{"url": "a.whl", "hashes": 1}]}', b"\xff", b"[" * 10**5,
    ],
)  # fmt: skip
def test_a_page_that_is_none_of_an_index_is_a_trouble_of_its_index(web: Web, page: bytes) -> None:
    web.pages[PAGE], web.kinds[PAGE] = page, JSON
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") == []
    assert index.troubles[0].startswith(f"{web.simple}: ")


def test_a_link_that_is_none_does_not_hide_the_others(web: Web) -> None:
    web.link("http://[bad")
    web.publish()
    assert [file.name for file in offered(web)] == [NAME]


def test_a_page_of_the_web_links_to_no_file_of_this_machine(web: Web, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    for link in ((tmp_path / NAME).as_uri(), f"data:,x/{NAME}", f"ftp://host/{NAME}"):
        web.link(f"{link}#sha256={WHEEL.sha256}")
    assert offered(web) == []


@pytest.mark.parametrize("text", ["<a ", "<a href ", "<a href="])
def test_a_page_is_read_in_one_pass_whatever_it_repeats(web: Web, text: str) -> None:
    web.pages[PAGE] = text.encode() * 200_000
    assert offered(web) == []


def test_a_page_has_a_limit(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_MOST_PAGE_BYTES", 2**20)
    web.publish()
    web.pages[PAGE] += bytes(2**20)
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") == []
    assert index.troubles == (f"{web.simple}: its page is larger than 1 MiB",)


def test_a_page_that_takes_too_long_is_a_trouble(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then is never silent."""
    monkeypatch.setattr(package_index, "_PAGE_SECONDS", 0.0)
    web.publish()
    index = PackageIndex(PipSettings((web.simple,)))
    assert index.files("thing") == []
    assert index.troubles == (f"{web.simple}: its page takes longer than 0 s",)


def test_a_page_is_left_when_the_time_is_over(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_CHUNK", 1000)
    web.pages[PAGE], web.pause_seconds = bytes(2**22), 0.2
    with pytest.raises(Paused):
        PackageIndex(PipSettings((web.simple,)), seconds=0.3).files("thing")


def test_no_page_is_asked_for_when_the_time_is_over(web: Web) -> None:
    index = PackageIndex(PipSettings((web.simple,)), seconds=0)
    with pytest.raises(Paused):
        index.files("thing")
    with pytest.raises(Paused):
        index.open(f"{web.url}/files/{NAME}")
    assert web.asked == []
    with pytest.raises(Paused):
        PackageIndex(PipSettings(()), seconds=60).pause(math.inf)


def test_names_of_one_project_have_one_normalised_form() -> None:
    assert normal("A.b_-C") == normal("a-B.c") == "a-b-c"
