"""A container's output cannot command the terminal, and bench's own live line still moves on it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.base.errors import EnvironmentCannot
from bench.base.live_line import COLUMNS_OUTSIDE, TO_BEGINNING, LinePart, LiveLine
from bench.base.names import ENGINES
from bench.images.container import Container
from bench.images.engines import docker, find_engine, follow
from bench.images.engines.output import MOST_CHARACTERS, ContainerOutput, settings_of_terminal
from tests.hostile_bundles import CONTROLS, OWNED, controls_in
from tests.terminals import on_terminal

C = Container("image", ("run",), Path("m.json"), Path("out"), memory_bytes=2**30)
SAID = f"out{CONTROLS}\n"
Start = Callable[[str, Path, pytest.MonkeyPatch], int]


def program(name: str, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Run a container with a program of the engine's name, which prints the same on stdout and stderr."""
    said = folder / "said"
    said.write_bytes(SAID.encode())
    file = folder / "programs" / name
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\ncat {said}; cat {said} >&2; exit 7\n")
    file.chmod(0o755)
    patch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
    return find_engine(name).run(replace(C, image=str(said)))


def api(name: str, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Run a container of Docker, whose API sends stdout and stderr in pieces."""
    containers = SimpleNamespace(create=lambda **_: SpeakingContainer())
    client = nullcontext(SimpleNamespace(containers=containers, info=dict))
    patch.setattr(docker.Docker, "_client", lambda _: client)
    patch.setattr(docker, "options", lambda *_: {})
    return find_engine(name).run(C)


class SpeakingContainer:
    def attach(self, **_: object) -> Iterator[tuple[bytes | None, bytes | None]]:
        for byte in SAID.encode():  # pieces end within characters, too
            yield bytes([byte]), None
            yield None, bytes([byte])

    def start(self) -> None: ...

    def wait(self) -> dict[str, int]:
        return {"StatusCode": 7}

    def remove(self, force: bool) -> None: ...


def bench_itself(name: str, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Run without a container: the process is bench, which escapes what it prints."""
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert find_engine(name).run(replace(C, command=("explain", CONTROLS))) == 2
    return 7


STARTS: dict[str, Start] = {"docker": api, "podman": program, "apptainer": program, "none": bench_itself}


def test_every_engine_is_tried() -> None:
    assert sorted(STARTS) == sorted(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_no_container_commands_the_terminal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert STARTS[name](name, tmp_path, monkeypatch) == 7
    for text in [text for text in capfd.readouterr() if text or name != "none"]:
        assert OWNED in text
        assert not controls_in(text), ascii(text)


def shown(pieces: Sequence[bytes], patch: pytest.MonkeyPatch, *, terminal: bool = False) -> str:
    """Return what stderr holds after a container wrote these pieces there."""
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal  # type: ignore[method-assign]
    patch.setattr(sys, "stderr", stderr)
    patch.setenv("TERM", "xterm")
    patch.setenv("NO_COLOR", "1")
    output = ContainerOutput()
    for piece in pieces:
        output.err(piece)
    output.end()
    return stderr.getvalue()


@pytest.mark.parametrize("at", range(1, 9))
def test_text_is_the_same_however_it_is_cut(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "±a\r\nb\rc\n\x1b[Kd".encode()
    assert shown([data[:at], data[at:]], monkeypatch) == "±a\nb\nc\n\\x1b[Kd\n"


def test_a_line_without_an_end_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown([b"x" * MOST_CHARACTERS] * 9, monkeypatch).splitlines()
    assert sum(map(len, lines)) == 9 * MOST_CHARACTERS
    assert len(lines) > 3


def inside(columns: int, act: Callable[[LiveLine], object]) -> bytes:
    """Return what bench in a container writes for a terminal of this width outside of it."""
    pipe = io.StringIO()
    act(LiveLine(pipe, {COLUMNS_OUTSIDE: str(columns)}))
    return pipe.getvalue().encode()


def progress(line: LiveLine) -> None:
    line.print("first result")
    line.draw([LinePart("step 1", 1)])
    line.draw([LinePart("step 2", 1)])
    line.print("second result")
    line.draw([LinePart("step 3", 1)])
    line.clear()


def test_the_live_line_of_bench_in_a_container_is_drawn_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person sees the last text behind each return to the beginning of a line."""
    direct = io.StringIO()
    direct.isatty = lambda: True  # type: ignore[method-assign]
    progress(LiveLine(direct, {"TERM": "xterm", "NO_COLOR": "1"}))
    data = inside(80, progress)
    bytes_alone = [data[i : i + 1] for i in range(len(data))]
    for pieces in ([data], bytes_alone):
        drawn = shown(pieces, monkeypatch, terminal=True)
        assert left(drawn) == left(direct.getvalue()) == ["first result", "second result", ""]
    assert f"{TO_BEGINNING}step 3{TO_BEGINNING}" in drawn  # where the pieces did not come all at once


def left(written: str) -> list[str]:
    """Return the lines that stay on a terminal."""
    return [line.rpartition(TO_BEGINNING)[2] for line in written.split("\n")]


def test_a_drawn_line_commands_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"{TO_BEGINNING}step {CONTROLS}".encode()
    assert not controls_in(shown([said], monkeypatch, terminal=True).replace(TO_BEGINNING, ""))


def test_bench_in_a_container_learns_the_width_of_the_terminal_if_there_is_one() -> None:
    def tell() -> int:
        print(dict(settings_of_terminal()))
        return 0

    told = on_terminal(tell, 97, {"TERM": "xterm"}).text
    assert told == f"{{'{COLUMNS_OUTSIDE}': '97', 'COLUMNS': '97'}}\n"
    assert on_terminal(tell, 97, {"TERM": "dumb"}).text == "{'COLUMNS': '97'}\n"


@pytest.mark.parametrize("width", ["", "0", "-1", "1e3", "99999", "²", "80 "])
def test_an_odd_width_is_none(width: str) -> None:
    assert not LiveLine(io.StringIO(), {COLUMNS_OUTSIDE: width}).drawn


def test_a_container_outlives_a_reader_of_its_output_and_the_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose table nobody reads any more still packs its bundle."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    done = tmp_path / "done"
    with pytest.raises(BrokenPipeError):
        follow(["sh", "-c", f"echo one; echo two; touch {done}"])
    assert done.exists()


def test_the_reason_why_an_image_did_not_start_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvironmentCannot, match="its own message is above"):
        follow(["sh", "-c", "printf 'no space left\\033[2J' >&2; exit 125"])
    assert capfd.readouterr().err == "no space left\\x1b[2J\n"
