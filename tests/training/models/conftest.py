from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Use one thread: tiny tensors gain nothing from more, and test processes would compete for two cores."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # silence warnings about slow fallbacks: naive is slow
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
