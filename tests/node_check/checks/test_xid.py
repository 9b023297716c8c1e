"""The kernel's log is read to its last record, and a file that is no log is not taken for a healthy one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.base import kernel_log
from bench.node_check.checks import xid

RECORD = b"4,1107,90210,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"


def measured() -> Any:
    return xid.measure(None, None)  # type: ignore[arg-type]


def test_a_log_without_a_further_record_has_been_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "LOG", str(tmp_path / "kmsg"))
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        assert measured() == {"lines": []}
        os.write(writer, RECORD)
        assert measured() == {"lines": ["NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."]}
    finally:
        os.close(writer)


@pytest.mark.parametrize("contents", [b"", RECORD])
def test_a_file_that_ends_is_no_kernel_log(
    contents: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kmsg").write_bytes(contents)
    monkeypatch.setattr(kernel_log, "LOG", str(tmp_path / "kmsg"))
    assert measured() == {"closed": f"{tmp_path / 'kmsg'}: not the kernel's log"}


def test_a_log_that_is_closed_to_this_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "LOG", "/no/such/file")
    assert measured() == {"closed": "/no/such/file: No such file or directory"}
