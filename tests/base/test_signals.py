"""Signal handlers are installed for a while and restored afterwards."""

from __future__ import annotations

import os
import signal

from bench.base.signals import ENDS, answered_by, held


def heard(numbers: tuple[signal.Signals, ...]) -> list[int]:
    told: list[int] = []
    with answered_by(lambda number, _frame: told.append(number)):
        for number in numbers:
            os.kill(os.getpid(), number)
    return told


def test_every_ending_signal_is_handled_and_its_handler_restored() -> None:
    before = [signal.getsignal(number) for number in ENDS]
    assert heard(ENDS) == [*ENDS]
    assert [signal.getsignal(number) for number in ENDS] == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert heard((signal.SIGHUP, signal.SIGTERM)) == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_during_a_critical_section_is_delayed_and_not_lost() -> None:
    told: list[str] = []
    with answered_by(lambda *_: told.append("interrupted")):
        with held():
            for number in ENDS:
                os.kill(os.getpid(), number)
            told.append("whole")
        assert told == ["whole", *["interrupted"] * len(ENDS)]
