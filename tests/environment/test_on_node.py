"""The program on the node: what it says of a lock, an index and a machine, and what it installs."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment import on_node, store
from bench.environment.contents import LockedPackage
from bench.environment.interpreter import this_interpreter
from bench.environment.on_node import InstallRequest, fitting
from bench.packages.download import WantedFile
from bench.packages.package_index import OfferedFile
from tests.environment.made_wheels import PYTHON, make_index, make_wheel, serving, sha256_of

SHA = "1" * 64


@pytest.fixture(autouse=True)
def _handler_of_hangups() -> Iterator[None]:
    """Restore the handler that `on_node.main` replaces in its process."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


# --- which file ------------------------------------------------------------------------------------------


def offered(tags: str, sha256: str | None = SHA, version: str = "2.13.0%2Bcpu") -> OfferedFile:
    return OfferedFile(f"http://index/torch-{version}-{tags}.whl", sha256)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "the index does not have it"),
        ([offered("cp311-cp311-linux_x86_64", version="2.12.0")], "the index does not have it"),
        (
            [offered("cp311-cp311-linux_x86_64", "9" * 64)],
            "the index has it with other digests than the lock's",
        ),
        ([offered("cp312-cp312-linux_x86_64")], "no wheel of it is for Python 3.11"),
        (
            [offered("cp312-cp312-linux_x86_64"), offered("cp311-cp311-manylinux_2_39_x86_64")],
            "it needs glibc 2.39 or newer, the node has 2.36",
        ),
    ],
)
def test_a_package_that_cannot_be_downloaded_has_a_reason(files: list[OfferedFile], why: str) -> None:
    package = LockedPackage("torch", "2.13.0+cpu", frozenset({SHA}))
    assert fitting(package, files, PYTHON) == ([], why)


def test_a_file_with_a_stated_digest_is_asked_for_before_one_without() -> None:
    package = LockedPackage("torch", "2.13.0+cpu", frozenset({SHA}))
    without, stated = offered("cp311-cp311-linux_x86_64", None), offered("cp311-cp311-linux_x86_64")
    assert fitting(package, [without, stated], PYTHON)[0] == [stated, without]


# --- the machine ----------------------------------------------------------------------------------------


def test_a_noexec_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.statvfs(tmp_path)

    class NoExec:
        f_flag = here.f_flag | os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda _: NoExec())
    with pytest.raises(EnvironmentCannot, match="noexec") as caught:
        on_node.require_executable(tmp_path / "not/yet/there")
    assert caught.value.advice is not None and "--place" in caught.value.advice
    with pytest.raises(EnvironmentCannot, match="noexec"):
        on_node.install(on_node.read_request(request_for(tmp_path / "place")))
    assert not (tmp_path / "place").exists()


def test_a_machine_without_a_library_that_wheels_count_on_is_told_what_to_install() -> None:
    on_node.require_library("libc.so.6")
    with pytest.raises(EnvironmentCannot, match=r"libno-such\.so\.6, which PyTorch needs") as caught:
        on_node.require_library("libno-such.so.6")
    assert caught.value.advice == "apt-get install libstdc++6 on the node, or dnf install libstdc++"


def test_a_plan_is_refused_on_a_machine_that_cannot_load_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(on_node, "require_library", asked.append)
    on_node.plan(on_node.read_request(request_for(tmp_path)))
    assert asked == ["libstdc++.so.6"]


@pytest.mark.parametrize(
    ("module", "name", "value", "told"),
    [
        ("sys", "version_info", (3, 10, 1), "its Python is 3.10; environments are for 3.11 to 3.13"),
        ("sys", "version_info", (3, 14, 0), "its Python is 3.14; environments are for 3.11 to 3.13"),
        ("platform", "machine", lambda: "aarch64", "the locks are for x86_64"),
        ("os", "confstr", lambda _: "musl 1.2", "its C library is not glibc"),
    ],
)
def test_a_machine_that_no_wheel_is_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Any, told: str
) -> None:
    monkeypatch.setattr(f"bench.environment.interpreter.{module}.{name}", value)
    with pytest.raises(EnvironmentCannot) as caught:
        this_interpreter()
    assert told in caught.value.message
    assert caught.value.advice


# --- plan and install -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "place"
    for path in (tmp_path / "place/environments").glob("*"):
        store.remove(path)


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's pip has no configuration besides that of the test."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in [name for name in os.environ if name.startswith("PIP_") and name != "PIP_CONFIG_FILE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def ask(
    verb: str, request: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Return the last line that the program prints."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    on_node.main(verb)
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return answer


def request_for(place: Path, *wheels: Path, **changes: Any) -> dict[str, Any]:
    names = [wheel.name.split("-")[:2] for wheel in wheels]
    packages = [
        [name, version, [sha256_of(wheel)], []] for (name, version), wheel in zip(names, wheels, strict=True)
    ]
    return {
        "place": str(place), "variant": "cpu", "lock": "sha256:1", "pins": "2" * 64, "packages": packages,
        "without": [], "index": None, "sent": {}, **changes,
    }  # fmt: skip


def test_a_plan_names_what_the_index_lacks_and_installs_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = make_wheel(tmp_path / "w", "a"), make_wheel(tmp_path / "w", "b")
    with serving(make_index(tmp_path / "index", a)) as server:
        plan = ask("plan", request_for(place, a, b, index=server.simple), monkeypatch, capsys)["plan"]
    assert plan["found"] is None
    assert plan["sizes"] == {"a": a.stat().st_size}
    assert plan["lacking"] == {"b": "the index does not have it"}
    assert plan["index_rate"] is None  # so small a wheel says nothing of the line
    python = this_interpreter()
    facts = (plan["version"], plan["python"], tuple(plan["glibc"]))
    assert facts == (python.text, python.release, python.glibc)
    assert not place.exists()


def test_an_index_that_does_not_answer_is_not_said_to_lack_the_package(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, nowhere = make_wheel(tmp_path / "w", "a"), "http://127.0.0.1:9/simple"
    plan = ask("plan", request_for(place, a, index=nowhere), monkeypatch, capsys)["plan"]
    refused = ask("install", request_for(place, a, index=nowhere), monkeypatch, capsys)["refused"]
    assert plan["lacking"] == refused == {"a": f"{nowhere}: Connection refused"}


def test_wheels_come_from_the_index_and_from_what_was_sent(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = make_wheel(tmp_path / "w", "a"), make_wheel(tmp_path / "w", "b")
    (place / "blobs").mkdir(parents=True)
    (place / "blobs" / sha256_of(b)).write_bytes(b.read_bytes())
    with serving(make_index(tmp_path / "index", a)) as server:
        request = request_for(place, a, b, index=server.simple, sent={"b": sha256_of(b)})
        answer = ask("install", request, monkeypatch, capsys)
        made = answer["installed"]
        again = ask("install", request, monkeypatch, capsys)["installed"]
        found = ask("plan", request, monkeypatch, capsys)["plan"]["found"]
        assert sum(path.endswith(".whl") for path in server.paths()) == 1
    assert made == again == found
    assert store.folder_of(place / "environments", made["digest"]).is_dir()
    wheels = sorted(path.name for path in (place / "blobs").iterdir())
    assert wheels == sorted(answer["wheels"]) == sorted(map(sha256_of, (a, b)))


def test_a_wheel_that_was_sent_and_is_gone_comes_from_the_index(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    with serving(make_index(tmp_path / "index", a)) as server:
        request = request_for(place, a, index=server.simple, sent={"a": sha256_of(a)})
        assert ask("install", request, monkeypatch, capsys)["wheels"] == [sha256_of(a)]


def test_an_index_that_lies_is_refused_and_nothing_is_installed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    index = make_index(tmp_path / "index", a)
    (index / "files" / a.name).write_bytes(b"another wheel under the name")
    with serving(index) as server:
        answer = ask("install", request_for(place, a, index=server.simple), monkeypatch, capsys)
    assert "not the lock's" in answer["refused"]["a"]
    assert not list((place / "environments").glob("[0-9a-f]*"))


def test_a_full_disk_is_told_before_anything_is_unpacked(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a", files={"a/zeros": bytes(10_000_000)})
    usage = on_node.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(on_node.shutil, "disk_usage", lambda _: usage._replace(free=5_000_000))
    with serving(make_index(tmp_path / "index", a)) as server:
        error = ask("install", request_for(place, a, index=server.simple), monkeypatch, capsys)["error"]
    assert "5 MB are free, the environment will take 10 MB" in error["message"]
    assert "--place" in error["advice"]


def test_a_full_disk_is_told_before_anything_is_downloaded(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    usage = on_node.shutil.disk_usage(tmp_path)
    with serving(make_index(tmp_path / "index", a)) as server:
        request = request_for(place, a, index=server.simple)
        with monkeypatch.context() as full:
            full.setattr(on_node.shutil, "disk_usage", lambda _: usage._replace(free=10))
            error = ask("install", request, monkeypatch, capsys)["error"]
        assert "GET" not in {asked.command for asked in server.requests if asked.path.endswith(".whl")}
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
        on_node.main("install")
    assert error["message"] == f"{place / 'blobs'}: 0 MB are free, the wheels will take 0 MB"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(line["at"] for line in lines[:-1])) == ["copying", "downloading", "installing"]
    downloaded = [line for line in lines[:-1] if line["at"] == "downloading"]
    assert len(downloaded) >= 2  # at its beginning and at its end
    assert downloaded[-1] == {"at": "downloading", "done": a.stat().st_size, "total": a.stat().st_size}


@pytest.mark.parametrize("verb", ["plan", "install"])
def test_certificates_that_cannot_be_read_are_told_with_what_to_do(
    verb: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such.pem")
    request = request_for(place, make_wheel(tmp_path / "w", "a"))
    error = ask(verb, request, monkeypatch, capsys)["error"]
    assert error["message"].startswith("/no/such.pem: certificates that pip's configuration names cannot be")
    assert error["advice"] == "correct `cert` in pip's configuration, or REQUESTS_CA_BUNDLE"


def test_a_password_of_the_nodes_configuration_is_in_nothing_that_is_printed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:s3cret@127.0.0.1:9/simple")
    for verb in ("plan", "install"):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request_for(place, a))))
        on_node.main(verb)
    said = capsys.readouterr().out
    assert "http://****@127.0.0.1:9/simple" in said
    assert "s3cret" not in said


def test_nothing_is_downloaded_where_all_wheels_were_sent(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    (place / "blobs").mkdir(parents=True)
    (place / "blobs" / sha256_of(a)).write_bytes(a.read_bytes())
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request_for(place, a, sent={"a": sha256_of(a)}))))
    assert on_node.main("install") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["at"] for line in lines[:-1]} == {"copying", "installing"}


def test_progress_is_told_twice_a_second_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(on_node, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = on_node._Progress("copying", 100)
    for at, count in ((100.0, 10), (100.4, 20), (100.5, 30), (100.9, 60)):
        now[0] = at
        progress.advance(count)
    progress.end()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"at": "copying", "done": 10, "total": 100},
        {"at": "copying", "done": 60, "total": 100},
        {"at": "copying", "done": 120, "total": 120},  # files that grew since the plan
    ]


def test_the_largest_file_is_downloaded_first_and_files_of_no_known_size_last() -> None:
    wanted = {name: WantedFile(name, frozenset(), ()) for name in ("a-unknown", "b-small", "c-large")}
    offers = on_node._Offers(wanted, {}, {"b-small": 1, "c-large": 2})
    assert [file.name for file in offers.largest_first] == ["c-large", "b-small", "a-unknown"]


def test_an_index_is_asked_for_sixteen_pages_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, at_once: int) -> None:
            asked.append(at_once)
            super().__init__(1)

    monkeypatch.setattr(on_node, "ThreadPoolExecutor", Pool)
    index: Any = SimpleNamespace(files=lambda name: [], troubles=[])
    offers = on_node._offers([LockedPackage("a", "1.0", frozenset())], index, PYTHON)
    assert (asked, offers.lacking) == ([16], {"a": "the index does not have it"})


# --- the steps --------------------------------------------------------------------------------------------

A, B = (LockedPackage(name, "1.0", frozenset({SHA}), frozenset({SHA})) for name in ("a", "b"))


def asked_for(place: Path, **changes: Any) -> InstallRequest:
    return replace(on_node.read_request(request_for(place)), packages=(A, B), **changes)


def test_a_request_in_full(tmp_path: Path) -> None:
    fields = request_for(tmp_path) | {"packages": [["a", "1.0", [SHA], [SHA]]], "without": ["flash-attn"]}
    found = on_node.read_request(fields | {"sent": {"a": SHA}, "index": "http://index"})
    assert found == InstallRequest(
        tmp_path, "cpu", "sha256:1", "2" * 64, (A,), ("flash-attn",), "http://index", {"a": SHA}
    )
    assert (found.environments, found.blobs) == (tmp_path / "environments", tmp_path / "blobs")


def test_packages_that_were_sent_are_not_looked_for_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[tuple[object, ...]] = []
    monkeypatch.setattr(on_node.adopt, "find", lambda *given: looked_for.append(given) or ({}, {}))
    monkeypatch.setattr(on_node.adopt, "folders_of_packages", lambda path: [path])
    monkeypatch.setenv("PATH", "/opt/bin")
    assert on_node._held(asked_for(tmp_path, sent={"a": SHA})) == ({}, {})
    monkeypatch.delenv("PATH")
    on_node._held(asked_for(tmp_path))
    assert looked_for == [([B], ["/opt/bin"]), ([A, B], [""])]


def test_a_plan_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: Any = {"a": SimpleNamespace(bytes=7)}
    offers = on_node._Offers(
        {"b": WantedFile("b", frozenset(), ("the file", "another"))},
        {"c": "gone"},
        {"b": 9},  # type: ignore[arg-type]
    )
    given: list[object] = []
    index = SimpleNamespace(troubles=("no answer",))
    monkeypatch.setattr(on_node, "_held", lambda request: (held, {"b": "0.9 is installed"}))
    monkeypatch.setattr(on_node, "PackageIndex", lambda settings: index)
    monkeypatch.setattr(on_node, "_offers", lambda *all_: given.extend(all_) or offers)
    monkeypatch.setattr(on_node, "measured_rate", lambda file, index: (file, 5e6))
    monkeypatch.setattr(on_node.shutil, "disk_usage", lambda path: SimpleNamespace(free=(path, 3)))
    python = this_interpreter()
    assert on_node.plan(asked_for(tmp_path / "place")) == {
        "plan": {
            "python": python.release, "version": python.text, "glibc": list(python.glibc), "found": None,
            "here": {"a": 7}, "differing": {"b": "0.9 is installed"}, "sizes": {"b": 9},
            "lacking": {"c": "gone"}, "troubles": ["no answer"], "index_rate": ("the file", 5e6),
            "free_bytes": (tmp_path, 3),
        }
    }  # fmt: skip
    assert given == [[B], index, python]


def test_a_trouble_of_an_index_explains_only_what_it_seems_not_to_have() -> None:
    files = {"a": [], "b": [OfferedFile("http://index/b-1.0-cp312-cp312-linux_x86_64.whl", SHA)]}
    index: Any = SimpleNamespace(files=files.get, troubles=["no answer", "another"])
    offers = on_node._offers([A, B], index, PYTHON)
    assert offers.lacking == {"a": "no answer", "b": "no wheel of it is for Python 3.11"}
    assert (offers.wanted, offers.sizes) == ({}, {})


def test_an_offer_has_its_size_where_the_index_tells_it() -> None:
    file = OfferedFile("http://index/a-1.0-py3-none-any.whl", SHA)
    sizes: dict[OfferedFile, int | None] = {file: 9}
    index: Any = SimpleNamespace(files=lambda name: [file], size=sizes.get, troubles=[])
    assert on_node._offers([A], index, PYTHON).sizes == {"a": 9}
    sizes.clear()
    offers = on_node._offers([A], index, PYTHON)
    assert (offers.sizes, offers.wanted) == ({}, {"a": WantedFile("a", A.sha256, (file,))})


def test_an_environment_that_is_there_is_not_installed_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_wheel(tmp_path / "w", "a")
    (place / "blobs").mkdir(parents=True)
    (place / "blobs" / sha256_of(a)).write_bytes(a.read_bytes())
    request = on_node.read_request(request_for(place, a, sent={"a": sha256_of(a)}))
    first = on_node.install(request)
    assert first["wheels"] == [sha256_of(a)]
    assert first["installed"].keys() == {
        "variant", "lock", "python", "build", "files", "without", "digest"
    }  # fmt: skip
    capsys.readouterr()
    assert on_node.install(request) == first | {"wheels": []}
    assert capsys.readouterr().out == ""
    assert on_node.plan(request)["plan"]["found"] == first["installed"]


def test_there_must_be_room_for_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held: Any = {"a": SimpleNamespace(bytes=7_000_000), "b": SimpleNamespace(bytes=2_000_000)}
    monkeypatch.setattr(on_node, "_held", lambda request: (held, {"c": "0.9 is installed"}))
    monkeypatch.setattr(on_node.adopt, "copy_all", lambda *given: ({"a": "copied"}, {"b": "changed"}))
    request = asked_for(tmp_path)
    for free, enough in ((9_000_000, True), (8_999_999, False)):
        monkeypatch.setattr(on_node.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        if enough:
            found = on_node._copied(request, tmp_path)
            assert found == ({"a": "copied"}, {"c": "0.9 is installed", "b": "changed"})
            assert json.loads(capsys.readouterr().out) == {"at": "copying", "done": 0, "total": 9_000_000}
            continue
        with pytest.raises(EnvironmentCannot, match="9 MB are free, the packages that are copied will"):
            on_node._copied(request, tmp_path)


def test_a_refusal_says_why_the_nodes_own_package_differs() -> None:
    differing = {"a": "0.9 is installed"}
    assert on_node._refusal("b", "no wheel", differing) == "no wheel"
    assert on_node._refusal("a", "no wheel", differing) == (
        "no wheel; in the node's own Python: 0.9 is installed"
    )


def test_an_installation_that_waits_for_another_push_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_at_a_time(environments: Path, wait: Callable[[], object]) -> Any:
        wait()
        return nullcontext()

    monkeypatch.setattr(store, "one_at_a_time", one_at_a_time)
    monkeypatch.setattr(on_node, "_described", lambda found: found)
    monkeypatch.setattr(store, "find", lambda *given: "an environment")
    place.mkdir()
    assert on_node.install(asked_for(place)) == {"installed": "an environment", "wheels": []}
    assert json.loads(capsys.readouterr().out) == {"at": "another push installs it; waiting"}


def test_only_packages_that_are_neither_sent_nor_copied_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    offers = on_node._Offers({}, {"c": "gone"}, {"c": 9})
    monkeypatch.setattr(on_node, "_offers", lambda packages, *_: asked.append(packages) or offers)
    monkeypatch.setattr(on_node, "fetch_all", lambda *given: ({"c": tmp_path / "c"}, {"d": "refused"}))
    c = replace(A, name="c")
    request = asked_for(tmp_path, sent={"b": SHA})
    request.blobs.mkdir()
    sent = request.blobs / SHA
    sent.touch()
    request = replace(request, packages=(A, B, c))
    here, refused = on_node._wheels(request, {"a": "copied"}, PYTHON)
    assert (here, refused) == ({"b": sent, "c": tmp_path / "c"}, {"c": "gone", "d": "refused"})
    assert asked == [[c]]
    assert on_node._wheels(request, {"a": "copied", "c": "copied"}, PYTHON) == ({"b": sent}, {})
    assert asked == [[c]]
