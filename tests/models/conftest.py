from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and lose much when two test processes share two cores."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # no word of slow fallbacks: slow is what naive means
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
