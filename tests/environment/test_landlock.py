"""The numbers of Linux's Landlock (include/uapi/linux/landlock.h), and kernels that offer less of it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from bench.environment import landlock

# Bits of the kernel's header: execute 0, write a file 1, read a file 2, read a folder 3, remove a folder 4,
# remove a file 5, make a device 6 and 11, folder 7, file 8, socket 9, pipe 10 or link 12, move between
# folders 13, shorten 14, control a device 15.
READ = {0, 2, 3}
WRITE = READ | {1, 4, 5, 7, 8, 9, 10, 12, 13, 14}
DEVICES = READ | {1, 14, 15}
OF_FILES = {0, 1, 2, 14, 15}


def bits(rights: int) -> set[int]:
    return {bit for bit in range(64) if rights >> bit & 1}


def test_the_rights_of_a_run_are_those_bits_of_the_kernel() -> None:
    """Nothing that a run may do makes a device."""
    rights = (landlock.READ, landlock.WRITE, landlock.DEVICES, landlock.WRITE_FILE)
    assert [bits(each) for each in rights] == [READ, WRITE, DEVICES, {1}]


@pytest.mark.parametrize(
    ("version", "later", "size"),
    [
        (1, set(), 8),
        (2, {13}, 8),
        (3, {13, 14}, 8),
        (4, {13, 14}, 16),
        (5, {13, 14, 15}, 16),
        (6, {13, 14, 15}, 24),
        (7, {13, 14, 15}, 24),
    ],
)
def test_each_kernel_is_asked_for_what_its_version_knows(version: int, later: set[int], size: int) -> None:
    """Rights of files come first, then ports of the network, which stay open, then sockets and signals."""
    assert bits(landlock.handled(version)) == {*range(13), *later}
    attributes = landlock.ruleset_attributes(version)
    assert len(attributes) == size
    assert struct.unpack("QQQ", attributes.ljust(24, b"\0")) == (
        landlock.handled(version), 0, 3 if size == 24 else 0,
    )  # fmt: skip


class Kernel:
    """The calls of a kernel that offers a version of Landlock, and fails where it is told to."""

    def __init__(self, version: int, ruleset: int | None = None, restricted: int = 0) -> None:
        self.version, self.restricted = version, restricted
        self._ruleset = ruleset
        self.rules: list[tuple[str, set[int]]] = []
        self.opened: set[int] = set()
        self.created: list[tuple[int | bytes | None, ...]] = []

    def __call__(self, number: int, *arguments: int | bytes | None) -> int:
        if number == 444 and arguments == (None, 0, 1):
            return self.version
        if number == 444:
            self.created.append(arguments)
            if self._ruleset is not None:
                return self._ruleset
            self.opened.add(ruleset := os.open(os.devnull, os.O_RDONLY))
            return ruleset
        if number == 445:
            _, kind, rule, flags = arguments
            assert (kind, flags, type(rule)) == (1, 0, bytes)
            rights, descriptor = struct.unpack("=Qi", rule)  # type: ignore[arg-type]
            self.opened.add(descriptor)
            self.rules.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), bits(rights)))
            return 0
        assert number == 446 and len(arguments) == 2 and arguments[1] == 0
        return self.restricted


@pytest.fixture
def rules(tmp_path: Path) -> list[tuple[Path, int]]:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    every = (1 << 16) - 1
    return [(tmp_path / name, every) for name in ("file", "folder", "absent")]


def confine(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, rules: list[tuple[Path, int]]) -> int:
    """Confine this process by a kernel; every descriptor that this opens is closed."""
    close, closed = os.close, set[int]()

    def note(descriptor: int) -> None:
        closed.add(descriptor)
        close(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(landlock, "_call", kernel)
        patch.setattr(landlock.os, "close", note)
        in_force = landlock.confine(rules)
    assert kernel.opened <= closed
    return in_force


def test_a_rule_allows_what_its_path_can_have_and_the_kernel_knows(
    monkeypatch: pytest.MonkeyPatch, rules: list[tuple[Path, int]]
) -> None:
    kernel = Kernel(2)
    assert confine(monkeypatch, kernel, rules) == 2
    folder = str(rules[1][0])
    assert kernel.rules == [(str(rules[0][0]), OF_FILES - {14, 15}), (folder, set(range(14)))]
    assert kernel.created == [(landlock.ruleset_attributes(2), 8, 0)]
    newest = Kernel(7)
    assert confine(monkeypatch, newest, rules) == 7
    assert newest.rules == [(str(rules[0][0]), OF_FILES), (folder, set(range(16)))]


@pytest.mark.parametrize(
    ("kernel", "is_asked"),
    [(Kernel(0), False), (Kernel(-1), False), (Kernel(6, ruleset=-1), True)],
    ids=["no Landlock", "no such call", "no ruleset"],
)
def test_a_kernel_without_landlock_restricts_nothing(
    monkeypatch: pytest.MonkeyPatch, rules: list[tuple[Path, int]], kernel: Kernel, is_asked: bool
) -> None:
    assert confine(monkeypatch, kernel, rules) == 0
    assert (bool(kernel.created), kernel.rules) == (is_asked, [])


def test_a_kernel_that_refuses_to_restrict_is_not_counted_as_one_that_does(
    monkeypatch: pytest.MonkeyPatch, rules: list[tuple[Path, int]]
) -> None:
    assert confine(monkeypatch, Kernel(6, restricted=-1), rules) == 0


def test_a_call_that_the_kernel_does_not_know_fails() -> None:
    assert landlock._call(4096) == -1
    assert landlock.version() >= 0
