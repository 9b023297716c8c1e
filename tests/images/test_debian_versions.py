"""Versions of Debian packages are in the order of dpkg."""

from __future__ import annotations

import itertools
import random
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.images.debian_versions import debian_version
from tests.needs import needs

# Each is newer than the one before it.
ASCENDING = (
    "1.0~~", "1.0~rc1-1", "1.0-0~bpo", "1.0", "1.0-1~deb12u1", "1.0-1", "1.0-1+b1", "1.0-1+deb12u1",
    "1.0-1.1", "1.0-2", "1.0-10", "1.0a-1", "1.0+dfsg-1", "1.0.1-1", "1.1-1", "1.10-1", "2:0.1-1",
)  # fmt: skip


def test_the_order_of_debian_policy() -> None:
    shuffled = random.Random(0).sample(ASCENDING, len(ASCENDING))
    assert sorted(shuffled, key=debian_version) == list(ASCENDING)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.01", "1.1"), ("1.0-1", "1.0-01"), ("1.0a", "1.0a0")],
)
def test_versions_that_are_spelt_differently_and_equal(one: str, other: str) -> None:
    assert debian_version(one) == debian_version(other)


@pytest.mark.parametrize("text", ["", "a b", "1:", "x:1", "1.0-", "1.0_1", "1\n", "1--2"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version of a Debian package"):
        debian_version(text)


def by_dpkg(one: str, other: str) -> int:
    """Compare as dpkg does: -1, 0 or 1."""
    for number, relation in ((-1, "lt"), (0, "eq")):
        command = ["dpkg", "--compare-versions", one, relation, other]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return number
    return 1


def by_us(one: str, other: str) -> int:
    a, b = debian_version(one), debian_version(other)
    return (a > b) - (a < b)


@needs("dpkg")
def test_dpkg_itself_orders_these_versions_so() -> None:
    for one, other in itertools.pairwise(ASCENDING):
        assert by_dpkg(one, other) == by_us(one, other) == -1, (one, other)


VERSIONS = st.from_regex(r"\A([0-9]{1,2}:)?[0-9][0-9a-z.+~]{0,6}(-[0-9a-z.+~]{1,4})?\Z")


@needs("dpkg")
@settings(max_examples=60, deadline=None)
@given(VERSIONS, VERSIONS)
def test_random_versions_are_ordered_as_by_dpkg(one: str, other: str) -> None:
    assert by_us(one, other) == by_dpkg(one, other)
