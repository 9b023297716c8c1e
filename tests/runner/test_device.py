"""What a device says of itself."""

from __future__ import annotations

import pytest
import torch

from bench.runner.device import Device


@pytest.mark.parametrize(("graphs", "peak"), [(None, 5), ("0", 5), ("1", 80)])
def test_what_cuda_graphs_keep_counts_as_memory(
    graphs: str | None, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """17.6 GiB were told of a pythia-1b that held 92.2 on an H200."""
    monkeypatch.delenv("TORCHINDUCTOR_CUDAGRAPHS", raising=False)
    if graphs is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CUDAGRAPHS", graphs)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 80)
    assert Device("cuda").peak_bytes() == peak
