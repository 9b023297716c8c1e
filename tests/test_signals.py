"""Who answers the signals that end us, and who no longer does."""

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


def test_all_that_ends_us_is_answered_and_given_back() -> None:
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


def test_what_must_be_whole_is_not_interrupted_and_the_interrupt_is_not_lost() -> None:
    told: list[str] = []
    with answered_by(lambda *_: told.append("interrupted")):
        with held():
            for number in ENDS:
                os.kill(os.getpid(), number)
            told.append("whole")
        assert told == ["whole", *["interrupted"] * len(ENDS)]
