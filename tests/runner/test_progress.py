"""Messages before anything is measured."""

from __future__ import annotations

from bench.records.trial import Skipped
from bench.runner.run.progress import skipped_lines


def test_skipped_settings_are_one_line_per_model() -> None:
    skipped = [
        Skipped("large", ("zero-1",), "zero-1", "needs about 53 GiB; there are 24"),
        Skipped("small", ("fsdp-2",), "fsdp-2", "takes more than one GPU"),
        Skipped("large", ("zero-2",), "zero-2", "needs about 53 GiB; there are 24"),
        Skipped("larger", ("zero-1",), "zero-1", "needs about 90 GiB; there are 24"),
        Skipped("larger", ("zero-2",), "zero-2", "needs about 80 GiB; there are 24"),
    ]
    assert list(skipped_lines(skipped)) == [
        "skipped  large  2 settings: needs about 53 GiB; there are 24",
        "skipped  small  fsdp-2: takes more than one GPU",
        "skipped  larger  2 settings: needs about 90 GiB; there are 24 (and 1 other reason)",
    ]
