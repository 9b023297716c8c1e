"""The levels at which each check is made, its process, its limits, and the part that it blames."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bench.node_check.all_checks import known_checks
from bench.node_check.judging import DEPTHS

UNDER_LOAD = "quick standard soak"
ONE_NODE = f"passive prolog {UNDER_LOAD}"
ALL = f"{ONE_NODE} nodes"


class Declared(NamedTuple):
    """A check, and how it declares that it is made."""

    levels: str
    workers: str
    limit_seconds: float
    blames: str
    words: str = ""  # names of the options that are on

    @classmethod
    def of(cls, name: str) -> Declared:
        check = known_checks()[name]
        levels = [depth for depth in DEPTHS if check.is_asked_at(depth) and check.is_made_at(depth)]
        options = {
            "torch": check.measure is not None and check.torch,
            "about_gpus": check.about_gpus,
            "two_gpus": check.least_gpus == 2,
            "soaks": check.soaks,
            "collective": check.collective,
            "older": check.has_older_bundles,
        }
        on = " ".join(option for option, is_on in options.items() if is_on)
        return cls(" ".join(levels), check.workers, check.limit_seconds, check.blames, on)


DECLARED = {
    "present": Declared(ONE_NODE, "host", 60, "card"),
    "alike": Declared(ONE_NODE, "host", 60, "node"),
    "strangers": Declared(f"prolog {UNDER_LOAD}", "host", 60, "guests"),
    "clock": Declared(ONE_NODE, "host", 10, "node"),
    "disk": Declared(UNDER_LOAD, "host", 90, "node"),
    "file-systems": Declared(UNDER_LOAD, "host", 200, "node", "older"),
    "host-memory": Declared(UNDER_LOAD, "host", 60, "node", "torch"),
    "numa": Declared("standard soak", "host", 150, "node", "torch older"),
    "host-errors": Declared(ONE_NODE, "host", 15, "node", "older"),
    "network": Declared(ONE_NODE, "host", 15, "node", "older"),
    "bmc": Declared(UNDER_LOAD, "host", 50, "node", "older"),
    "ports": Declared(ALL, "host", 15, "node", "older"),
    "gpudirect": Declared(ALL, "host", 10, "node", "about_gpus older"),
    "drift": Declared(ONE_NODE, "host", 15, "node", "older"),
    "own-card": Declared(UNDER_LOAD, "team", 120, "node", "torch about_gpus two_gpus older"),
    "matmul": Declared(UNDER_LOAD, "team", 120, "card", "torch"),
    "memory": Declared(UNDER_LOAD, "team", 60, "card", "torch"),
    "copies": Declared(UNDER_LOAD, "team", 150, "card", "torch"),
    "peers": Declared(UNDER_LOAD, "one", 120, "card", "torch two_gpus"),
    "all-reduce": Declared(UNDER_LOAD, "team", 180, "card", "torch two_gpus collective"),
    "agreement": Declared(UNDER_LOAD, "team", 180, "card", "torch"),
    "soak": Declared(UNDER_LOAD, "team", 60, "card", "torch soaks"),
    "pairs": Declared("nodes", "nodes", 60, "node"),
    "exchange": Declared("nodes", "nodes", 60, "node"),
    "pcie": Declared(ONE_NODE, "host", 60, "card"),
    "nvlink": Declared(ONE_NODE, "host", 60, "card"),
    "fabric": Declared(ONE_NODE, "host", 60, "node"),
    "power": Declared(ONE_NODE, "host", 60, "node"),
    "ecc": Declared(ONE_NODE, "host", 60, "card"),
    "rows": Declared(ONE_NODE, "host", 60, "card"),
    "xid": Declared(ONE_NODE, "host", 15, "card", "about_gpus"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_a_check_declares_when_it_is_made_and_what_it_blames(name: str) -> None:
    assert Declared.of(name) == DECLARED[name]


def test_every_check_is_in_the_table_in_the_order_in_which_they_run() -> None:
    assert list(known_checks()) == list(DECLARED)


@pytest.mark.parametrize(
    ("name", "environment"),
    [("all-reduce", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
                     "NCCL_DEBUG_FILE": "{logs}/all-reduce-nccl-%p.raw"}),
     ("agreement", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})],
)  # fmt: skip
def test_libraries_are_told_what_a_check_needs_of_them(name: str, environment: dict[str, str]) -> None:
    with_environment = {check.name for check in known_checks().values() if check.environment}
    assert with_environment == {"all-reduce", "agreement"}
    assert known_checks()[name].environment == environment
