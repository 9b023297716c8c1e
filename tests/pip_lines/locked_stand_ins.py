"""The packages of all locks, for an index of stand-ins: creating the locks again from it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from bench.images.locks import BUILDER, read_pins
from bench.images.variants import images
from bench.packages.package_index import normal
from release import operator_lock
from tests.pip_lines.package_facts import PackageFacts, Packages, read_facts

OF_TORCH = ("cuda-", "nvidia-", "triton")  # what a torch brings that package_facts.json does not know


def versions_of_locks(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the version of each package by its name, for each lock of wheels below `root`."""
    locks = (BUILDER, *(variant.lock for variant in images().variants))
    found = {lock: {pin.name: pin.version for pin in read_pins(root / lock).values()} for lock in locks}
    own = operator_lock.read_lock((root / operator_lock.LOCK).read_text(encoding="utf-8"))
    return {**found, operator_lock.LOCK: {pin.name: pin.version for pin in own}}


def locked_packages(root: Path) -> Packages:
    """Return the packages of the locks, without a label such as +cpu, each in the versions of the locks."""
    known, packages = read_facts(), dict[str, dict[str, PackageFacts]]()
    for versions in versions_of_locks(root).values():
        for name, labelled in versions.items():
            version = labelled.partition("+")[0]
            of_name = known.get(name, {})
            facts = of_name.get(version) or _facts_by_lock(name, of_name.values(), versions)
            packages.setdefault(name, {})[version] = facts
    return packages


def _facts_by_lock(name: str, others: Iterable[PackageFacts], versions: Mapping[str, str]) -> PackageFacts:
    """Return facts of a version that is not recorded: what others of the package require, as in the lock."""
    needed = {normal(Requirement(each).name) for facts in others for each in facts.requires}
    if name == "torch":
        needed |= {each for each in versions if each.startswith(OF_TORCH)}
    return PackageFacts("", tuple(f"{each}=={versions[each]}" for each in sorted(needed & versions.keys())))
