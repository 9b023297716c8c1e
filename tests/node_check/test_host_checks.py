"""Checks of the host run on any machine, also where nothing but bench is installed."""

from __future__ import annotations

import pytest

from bench.node_check.all_checks import known_checks

OF_HOST = "bmc clock disk drift file-systems gpudirect host-errors network ports xid"


@pytest.mark.parametrize("name", OF_HOST.split())
def test_a_check_of_the_host_needs_no_torch(name: str) -> None:
    assert not known_checks()[name].torch
