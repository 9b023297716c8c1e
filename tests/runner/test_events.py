"""Journal events: a line decodes to its event and encodes to the same bytes again."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.strict_json import DecodeError, canonical_json, strict_loads, to_json
from bench.runner.run.events import event_from_json

NODE = (
    '{"cpu":"EPYC","cpu_cores":64,"driver":null,"gpus":[],"image":null,"kernel":"6.1","memory_bytes":9,'
    '"os":"Debian 12","packages":{"torch":"2.13.0"},"python":"3.11.2","switches":null}'
)
LINES = [  # as version 0.1.0 writes them
    '{"bench":"0.1.0","event":"run","machine":null,"manifest":"sha256:ab","node":'
    + NODE
    + ',"schema":"bench/journal/v1","started_at":1.5}',
    '{"event":"moved","gpus":["GPU-b"],"machine":"0123456789abcdef"}',
    '{"event":"nodes","nodes":[' + NODE + "]}",
    '{"ceilings":[{"device":0,"name":"matmul-fp32","samples":[0.5],"unit":"FLOP/s","work":8}],"event":"ceilings"}',
    '{"event":"begun","id":"0123456789abcdef"}',
    '{"event":"trial","id":"0123456789abcdef","outcome":{"kind":"crashed","reason":"x"}}',
    '{"event":"trial","id":"0123456789abcdef","outcome":'
    '{"kind":"timed-out","limit_seconds":300.0,"phase":"warm-up"}}',
    '{"event":"proof","id":"0123456789abcdef","proof":{"peak_bytes":9,"seconds":1.5,"steps":3}}',
    '{"event":"unproven","id":"0123456789abcdef","outcome":{"detail":"d","kind":"out-of-memory","where":"gpu"}}',
    '{"event":"floor","floor":{"attention_seconds":0.5,"convolutions_seconds":0.0,"passes":3,'
    '"products_seconds":1.5,"scans_seconds":0.0},"id":"0123456789abcdef"}',
    '{"event":"no-floor","id":"0123456789abcdef","why":"crashed: x"}',
    '{"check":{"parameters":9,"reference":["checkpointing"],"whole_difference":0.5,"worst":"key.bias",'
    '"worst_difference":2.5},"event":"gradient-check","id":"0123456789abcdef"}',
    '{"event":"no-gradient-check","id":"0123456789abcdef","why":"crashed: x"}',
    '{"event":"stopped","why":"interrupted"}',
    '{"bundle":"abc.tar","event":"end"}',
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_encoded_as_it_was_decoded(line: str) -> None:
    assert canonical_json(to_json(event_from_json(strict_loads(line)))) == line.encode()


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": ["run"]},
        {"event": "unheard-of"},
        {"event": "begun"},
        {"event": "begun", "id": "a", "more": 1},
        {"event": "trial", "id": "a", "outcome": {"kind": "measured"}},
    ],
)
def test_a_line_of_another_form_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        event_from_json(line)
