"""How the members of a team meet."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from bench.runner import LISTENER
from bench.runner.trial.team import join


def test_an_exported_script_joins_the_store_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun names an address and a port; only bench's own processes inherit an open socket."""
    monkeypatch.delenv(LISTENER, raising=False)
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    team = join("cpu", alone=False)
    try:
        assert team.gather("here") == ["here"]
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
