"""The sentence that says how long it takes to bring a run's software to a node, before it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.images.locked_wheels import LockedWheel
from bench.images.locks import Pin
from bench.images.variants import find_variant
from bench.push.forecast import Forecast
from bench.push.install_environment import (
    Installed,
    InstallPlan,
    PlannedInstall,
    Shipment,
    choose,
    folder_of_code,
    forecast,
    split_bytes,
)
from bench.push.locked_environment import LockedEnvironment
from bench.push.remote import Here
from bench.push.shared_place import PlaceClaim
from tests.environment.made_wheels import PYTHON

MB = 10**6
MBIT = 1e6 / 8


@pytest.mark.parametrize(
    ("given", "seconds", "sentence"),
    [
        ({"what": "the image cpu"}, 0.0, "the image cpu is there already"),
        (
            {"what": "the image cpu", "send_bytes": 378 * MB, "up_bytes_per_second": 20 * MBIT,
             "at_most": True},
            151.2,
            "the image cpu, at most 378.0 MB over SSH at 20 Mbit/s: at most 3 min",
        ),
        (
            {"what": "the image cpu", "send_bytes": MB, "at_most": True},
            None,
            "the image cpu, at most 1.0 MB over SSH: how long is unknown",
        ),
    ],
)  # fmt: skip
def test_bytes_lines_and_minutes_are_said(
    given: dict[str, Any], seconds: float | None, sentence: str
) -> None:
    made = Forecast(**given)
    assert made.seconds == pytest.approx(seconds)
    assert made.sentence == sentence


# --- environments ---------------------------------------------------------------------------------------

PINS = {name: Pin(name, "1", frozenset({"2" * 64})) for name in ("numpy", "torch")}
LOCKED = LockedEnvironment(find_variant("cpu"), "sha256:" + "1" * 64, PINS, ())
TORCH, NUMPY = 200 * MB, LOCKED.variant.wheel_bytes - 200 * MB
UNREACHABLE = "https://pypi.org/simple: Name or service not known"


def plan(**changes: Any) -> InstallPlan:
    usual: dict[str, Any] = {
        "found": None, "python": PYTHON, "sizes": {"torch": TORCH, "numpy": NUMPY}, "lacking": {},
        "troubles": (), "index_rate": 400 * MBIT, "free_bytes": 10**12,
    }  # fmt: skip
    return InstallPlan(**usual | changes)


def said(found: InstallPlan, up: float | None) -> str:
    shipment = choose(found, LOCKED, lambda: up)
    return (
        forecast(PlannedInstall(found, Shipment(shipment.packages, shipment.why, up)), LOCKED)
        .sentence.removeprefix("the environment cpu with Python 3.11")
        .lstrip(", ")
    )


def test_an_index_with_everything() -> None:
    assert said(plan(), None) == "254.9 MB from the node's own index at 400 Mbit/s: about 22 s"


def test_an_index_without_one_package_whose_size_follows_from_the_lock() -> None:
    lacks = plan(sizes={"numpy": NUMPY}, lacking={"torch": "the index does not have it"})
    assert said(lacks, 20 * MBIT) == (
        "54.9 MB from the node's own index at 400 Mbit/s and 200.0 MB over SSH at 20 Mbit/s "
        "(torch: the index does not have it): about 2 min"
    )


def test_no_index_and_a_slow_line_say_the_minutes() -> None:
    nothing = plan(
        sizes={}, lacking=dict.fromkeys(PINS, "unreachable"), troubles=(UNREACHABLE,), index_rate=None
    )
    assert said(nothing, 2 * MBIT) == (
        f"254.9 MB over SSH at 2 Mbit/s (the node cannot download: {UNREACHABLE}): about 17 min"
    )


def test_a_slow_index_and_a_fast_line_send_everything() -> None:
    assert said(plan(index_rate=2 * MBIT), 200 * MBIT) == (
        "254.9 MB over SSH at 200 Mbit/s (the node's own line to its index gives 2.0 Mbit/s): about 27 s"
    )


def test_what_the_nodes_own_python_has_is_said() -> None:
    own = plan(sizes={"numpy": NUMPY}, here={"torch": 1_200 * MB})
    assert said(own, None) == (
        "(1 of 2 packages, 1.20 GB, are there already), 54.9 MB from the node's own index at 400 Mbit/s: "
        "about 8 s"
    )
    all_of_it = plan(sizes={}, here={"torch": 1_200 * MB, "numpy": 60 * MB}, index_rate=None)
    assert said(all_of_it, None) == "(2 of 2 packages, 1.26 GB, are there already): about 3 s"
    other = plan(differing={"torch": "2.9.0 is installed"})
    assert said(other, None).startswith(
        "(0 of 2 packages are there already, 1 in another version or changed), 254.9 MB from the node's own"
    )


def test_wheels_that_are_known_have_their_own_sizes() -> None:
    wheels = {"torch": (LockedWheel("torch-1-py3-none-any.whl", 70 * MB, "4" * 64),)}
    known = replace(LOCKED, wheels=wheels)
    lacks = plan(sizes={}, lacking={"torch": "no"}, here={"numpy": 60 * MB})
    assert split_bytes(lacks, choose(lacks, known, lambda: MB), known) == (70 * MB, 0)


def test_an_environment_that_is_there() -> None:
    found = plan(found=Installed("sha256:" + "3" * 64))
    made = forecast(PlannedInstall(found, Shipment((), "")), LOCKED)
    assert (made.sentence, made.seconds) == ("the environment cpu with Python 3.11 is there already", 0.0)


# --- the code that asks ---------------------------------------------------------------------------------


def test_the_code_that_asks_leaves_nothing_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.push.image_store import ImageStore

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = ImageStore(print).code()
    with folder_of_code(Here(), PlaceClaim("/no/such", "p-0"), code) as folder:
        assert (Path(folder) / "bench/environment/on_node.py").exists()
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "place/code" / code[0][:16]
    kept.mkdir(parents=True)
    with folder_of_code(Here(), PlaceClaim(str(tmp_path / "place"), "p-0"), code) as folder:
        assert folder == str(kept)
    assert kept.exists()
