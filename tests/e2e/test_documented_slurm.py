"""The documented line by which two nodes of a cluster train as one, typed on the login node itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented_commands import printed
from tests.e2e.nodes import Nodes
from tests.e2e.pushing import PAIR, TINY, Operator, inside
from tests.e2e.slurm import slurm_cluster
from tests.e2e.test_push_slurm import bundles, put_python, reader_at

pytestmark = pytest.mark.e2e


def test_two_nodes_train_as_one_from_the_login_node(tmp_path: Path) -> None:
    with slurm_cluster(tmp_path / "slurm", 2) as environment:
        operator = Operator(tmp_path, Nodes(tmp_path, 0, (), {"login": tmp_path}))
        put_python(tmp_path)
        paper = TINY | PAIR | {"models": ["tiny-vit"]}
        line = printed(
            "bench push manifests/paper.json --slurm --engine none --python ~/venv/bin/python --slurm-nodes 2"
        )
        configuration = environment["SLURM_CONF"]
        (tmp_path / "ssh_config").write_text("")
        reader_at(operator, paper=paper).type(f"export SLURM_CONF={configuration}; {line}")
    (bundle,) = bundles(operator)
    assert len(inside(bundle, "env.json")["nodes"]) == 2
    assert {trial["gpus"] for trial in inside(bundle, "results.json")["trials"]} == {2}
