"""The lock of the operator's side pins every package with hashes, and fits pyproject.toml."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.base.errors import BadInput
from release.operator_lock import LOCK, MarkedPin, read_lock, sbom, unmet, with_own_wheel
from tests.layers import ROOT

ONE, TWO = "1" * 64, "2" * 64
TEXT = f"""some.thing==1.0 \\
    --hash=sha256:{ONE} \\
    --hash=sha256:{TWO}
other==2.0 ; python_full_version < '3.12' and sys_platform == 'win32' \\
    --hash=sha256:{TWO}
"""
PINS = (
    MarkedPin("some-thing", "1.0", "", (ONE, TWO)),
    MarkedPin("other", "2.0", "python_full_version < '3.12' and sys_platform == 'win32'", (TWO,)),
)


def test_lines_have_versions_hashes_and_markers() -> None:
    assert read_lock(TEXT) == PINS


@pytest.mark.parametrize(
    "line", ["thing==1.0", "thing>=1.0 --hash=sha256:" + ONE, "thing==1.0 --hash=md5:1", "./x.whl"]
)
def test_a_line_without_a_version_or_hash_is_refused(line: str) -> None:
    with pytest.raises(BadInput, match="is not pinned with its hashes"):
        read_lock(line)


def test_the_wheel_of_the_release_is_pinned_too() -> None:
    pins = read_lock(with_own_wheel(TEXT, "0.1.0", ONE))
    assert pins == (*PINS, MarkedPin("bench-appliance", "0.1.0", "", (ONE,)))


def test_the_committed_lock_satisfies_pyproject() -> None:
    assert list(unmet(ROOT.parent)) == []


def test_what_the_lock_does_not_satisfy_is_told(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    shutil.copy(ROOT.parent / "pyproject.toml", tmp_path)
    lock = (ROOT.parent / LOCK).read_text().replace("rich==15", "rich==99").replace("fabric==", "fabrik==")
    (tmp_path / LOCK).write_text(lock)
    told = list(unmet(tmp_path))
    assert told[0].startswith(f"{LOCK} has rich 99.0.0, required is rich")
    assert told[1].startswith(f"{LOCK} lacks fabric, required as fabric")
    assert len(told) == 2


def test_the_list_names_each_accepted_file_by_its_digest() -> None:
    first, second = json.loads(sbom(PINS, "0.1.0", ("bench.whl", ONE)))["components"]
    assert first["purl"] == "pkg:pypi/some-thing@1.0"
    assert [one["hashes"][0]["content"] for one in first["externalReferences"]] == [ONE, TWO]
    assert second["hashes"] == [{"alg": "SHA-256", "content": TWO}]
