"""Numbers and counts as people read them."""

from __future__ import annotations

import pytest

from bench.records.text import count_text


@pytest.mark.parametrize(
    ("number", "word", "text"),
    [
        (1, "trial", "1 trial"),
        (0, "trial", "0 trials"),
        (2000, "trial", "2,000 trials"),
        (1, "pass", "1 pass"),
        (2, "pass", "2 passes"),
        (3, "batch", "3 batches"),
    ],
)
def test_a_count_has_its_noun(number: int, word: str, text: str) -> None:
    assert count_text(number, word) == text
