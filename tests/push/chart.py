"""Render a chart whose templates have nothing but `{{ .Values.NAME }}`, `| quote` and the namespace.

This is the part of Helm's language that bench's chart may use; anything else is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(.*?)\}\}")
_VALUE = re.compile(r" \.Values\.(\w+)( \| quote)? ")


def rendered(chart: Path, namespace: str, **values: Any) -> str:
    """Return the chart's manifests with its own values, or with others in their place."""
    chosen: Mapping[str, Any] = yaml.safe_load((chart / "values.yaml").read_text()) | values

    def value(match: re.Match[str]) -> str:
        if match[1] == " .Release.Namespace ":
            return namespace
        found = _VALUE.fullmatch(match[1])
        if found is None:
            raise ValueError(f"more of Helm's language than this renders: {match[0]}")
        plain = chosen[found[1]]
        text = json.dumps(plain) if isinstance(plain, bool) else str(plain)
        return json.dumps(text) if found[2] else text

    templates = sorted((chart / "templates").iterdir())
    return "---\n".join(_ACTION.sub(value, path.read_text()) for path in templates)
