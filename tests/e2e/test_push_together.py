"""Two nodes that train together give one bundle; both start or neither does; if one is lost, both end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nodes import free_port, ssh_nodes
from tests.e2e.pushing import PAIR, UNHURRIED, Operator, inside, kill_run
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with ssh_nodes(tmp_path / "n") as nodes:
        yield Operator(tmp_path, nodes)


MODELS = ["tiny-gpt-neox", "tiny-vit", "tiny-roberta"]  # a second may be decided before the run is stopped


def together(operator: Operator) -> list[str | Path]:
    lead, other = operator.nodes.addresses
    return [operator.manifest(**PAIR, models=MODELS), lead, other, "--together", f"{lead}:{free_port()}"]


def test_if_one_node_is_lost_the_others_end_and_the_next_push_continues_with_all(operator: Operator) -> None:
    (lead, other), words = operator.nodes.addresses, together(operator)
    pushing = operator.begin(*words)
    with operator.halfway(lead):
        kill_run(operator.nodes.homes[other])
    out, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    assert f"{other}  failed     run: the run was killed on the node" in err
    assert "incomplete" in err and "incomplete" in out
    before = operator.journal()
    assert 1 <= before.count('"event":"trial"') < len(MODELS)
    again = operator.push(*words)
    assert [node["outcome"] for node in again["nodes"]] == ["done", "done"]
    assert (again["nodes"][0]["level"], again["nodes"][1]["bundle"]) == ("operator", None)
    (bundle,) = operator.folder.glob("results/*.tar")
    key = operator.folder / "config/bench/id_ed25519.pub"
    assert "level      operator" in operator.bench("verify", bundle, "--trust", key).stdout
    found = inside(bundle, "results.json")
    assert found["run"]["complete"]
    assert [(trial["outcome"], trial["gpus"]) for trial in found["trials"]] == [("measured", 2)] * len(MODELS)
    assert len(inside(bundle, "env.json")["nodes"]) == 2
    assert (operator.folder / f"results/{found['run']['id']}/journal.jsonl").read_text().startswith(before)
    assert [operator.nodes.left(address) for address in (lead, other)] == [[], []]


def test_all_nodes_start_or_none(operator: Operator) -> None:
    lead, refused = operator.nodes.addresses[0], f"127.77.0.2:{free_port()}"
    done = operator.push(
        operator.manifest(**PAIR), lead, refused, "--together", f"{lead}:{free_port()}", code=3
    )
    first, second = done["nodes"]
    assert "refused" in second["error"]["message"]
    assert first["error"]["message"].startswith(f"not started, because of {refused}: ")
    assert operator.nodes.left(lead) == []


def test_hosts_check_the_fabric_between_them_and_the_first_has_the_bundle(operator: Operator) -> None:
    lead, other = operator.nodes.addresses
    check = operator.folder / "fabric.json"
    manifest = {"schema": "bench/node-check/v1", "name": "fabric", "level": "nodes"}
    check.write_text(json.dumps(manifest | {"levels": {"nodes": UNHURRIED}}))
    done = operator.push(check, lead, other, "--together", f"{lead}:{free_port()}")
    assert [(node["outcome"], node["check"]) for node in done["nodes"]] == [("done", "pass"), ("done", None)]
    (bundle,) = operator.folder.glob("results/*.tar")
    found = inside(bundle, "results.json")
    assert found["level"] == "nodes"
    assert {"pairs", "exchange"} <= {finding["check"] for finding in found["findings"]}
    key = operator.folder / "config/bench/id_ed25519.pub"
    assert "level      operator" in operator.bench("verify", bundle, "--trust", key).stdout
    assert [operator.nodes.left(address) for address in (lead, other)] == [[], []]


def test_a_fabric_has_two_hosts_at_least(operator: Operator) -> None:
    check = operator.folder / "fabric.json"
    check.write_text('{"schema": "bench/node-check/v1", "level": "nodes"}')
    refused = operator.bench("push", check, operator.nodes.addresses[0], code=2)
    assert "at least two" in refused.stderr
