"""Print the schema of what bench writes into files for SkyPilot or dstack, as the installed release has it.

    python rental_schemas.py skypilot|dstack            print the JSON schema
    python rental_schemas.py skypilot|dstack FILE...    let its own parser read each FILE

Runs in a separate environment, which has the program and not bench: tests/e2e/test_rent.py makes one.
tests/push/rental_schemas.json was made of both outputs, of SkyPilot 0.14.1 and dstack 0.22.5.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_OF_DSTACK = (
    "type", "name", "files", "commands", "backends", "regions", "availability_zones", "resources",
    "spot_policy", "creation_policy", "max_duration", "idle_duration",
)  # fmt: skip


def schema(tool: str) -> dict[str, Any]:
    if tool == "skypilot":
        from sky.utils import schemas

        whole = dict(schemas.get_task_schema())
        wanted = ("name", "resources", "file_mounts", "run")
        resources = schemas.get_resources_schema()
        whole["properties"] = {name: whole["properties"][name] for name in wanted}
        fields = ("infra", "accelerators", "use_spot", "autostop")
        resources["properties"] = {name: resources["properties"][name] for name in fields}
        whole["properties"]["resources"] = {**resources, "additionalProperties": False}
        return whole
    from dstack._internal.core.models.configurations import TaskConfiguration

    whole = dict(TaskConfiguration.model_json_schema())
    properties = {name: whole["properties"][name] for name in _OF_DSTACK}
    definitions = whole["$defs"]
    kept: dict[str, Any] = {}
    text = json.dumps(properties)
    while more := {n: d for n, d in definitions.items() if n not in kept and f'"#/$defs/{n}"' in text}:
        kept |= more
        text += json.dumps(more)
    return {"type": "object", "additionalProperties": False, "properties": properties, "$defs": kept}


def read(tool: str, path: Path) -> None:
    if tool == "skypilot":
        import sky

        sky.Task.from_yaml(str(path))
    else:
        import yaml
        from dstack._internal.core.models.configurations import parse_apply_configuration

        parse_apply_configuration(yaml.safe_load(path.read_text()))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(schema(sys.argv[1])))
    else:
        for name in sys.argv[2:]:
            read(sys.argv[1], Path(name))
