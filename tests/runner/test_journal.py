"""After any crash, the journal contains exactly the events that were written."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.errors import BadInput
from bench.runner.run.journal import FILE_NAME, Journal, read_journal

TEXT = st.text(max_size=20)
EVENTS = st.lists(st.dictionaries(TEXT, st.one_of(st.integers(-(2**53), 2**53), TEXT, st.none())), max_size=5)


def written(folder: Path, events: list[dict[str, Any]]) -> bytes:
    (folder / FILE_NAME).unlink(missing_ok=True)
    with Journal(folder) as journal:
        for event in events:
            journal.append(event)
    return (folder / FILE_NAME).read_bytes()


@given(events=EVENTS)
@settings(max_examples=30, deadline=None)
def test_events_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, events: Any) -> None:
    folder = tmp_path_factory.mktemp("journal")
    written(folder, events)
    with Journal(folder) as journal:
        assert journal.events == events


def test_a_truncated_journal_keeps_every_whole_line_and_accepts_more(tmp_path: Path) -> None:
    events = [{"event": "run", "n": 1}, {"event": "trial", "id": "ä", "seconds": 0.25}, {"event": "end"}]
    data = written(tmp_path, events)
    for length in range(len(data) + 1):
        (tmp_path / FILE_NAME).write_bytes(data[:length])
        whole = data[:length].count(b"\n")
        with Journal(tmp_path) as journal:
            assert journal.events == events[:whole], length
            journal.append({"event": "later"})
        assert list(read_journal(tmp_path / FILE_NAME)) == [*events[:whole], {"event": "later"}]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff\xfe", b'{"a":1,"a":2}', b'{"a":NaN}', b""])
def test_damage_in_the_middle_is_named_and_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"event":"run"}\n' + line + b'\n{"event":"end"}\n')
    with pytest.raises(BadInput, match="line 2"):
        Journal(tmp_path)


def test_a_line_cut_off_by_a_full_disk_damages_nothing(tmp_path: Path) -> None:
    """An incomplete line that stayed would merge with the next one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python does the same
    with Journal(tmp_path) as journal:
        journal.append({"event": "run"})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (30, limits[1]))
            with pytest.raises(OSError, match="too large"):
                journal.append({"event": "trial", "id": "a" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        journal.append({"event": "end"})
        assert journal.events == [{"event": "run"}, {"event": "end"}]
    assert list(read_journal(tmp_path / FILE_NAME)) == [{"event": "run"}, {"event": "end"}]


def test_a_run_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(BadInput, match="already going on"):
        Journal(tmp_path)
    with Journal(tmp_path) as journal:
        assert journal.events == []
