"""The schemas of the last three versions of Kubernetes, for the kinds of object that bench makes.

kubernetes_schemas.json has them, without texts and without fields that bench never sets, so that a field
which is not in it is a mistake here. `kept` made it from the schemas in kubernetes-validate 1.37.0, a package
of the licence Apache-2.0 as Kubernetes itself, which were made of the OpenAPI definitions of Kubernetes.
tests/e2e/test_kubernetes_schemas.py makes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).with_suffix(".json")
VERSIONS = ("1.35.0", "1.36.0", "1.37.0")
KINDS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "Pod": "io.k8s.api.core.v1.Pod",
    "Namespace": "io.k8s.api.core.v1.Namespace",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
    "ClusterRole": "io.k8s.api.rbac.v1.ClusterRole",
    "ClusterRoleBinding": "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "Role": "io.k8s.api.rbac.v1.Role",
    "RoleBinding": "io.k8s.api.rbac.v1.RoleBinding",
}
# Fields that bench's objects never have; their types are left out too.
_UNUSED = {
    "status", "managedFields", "ownerReferences", "ephemeralContainers", "lifecycle", "livenessProbe",
    "readinessProbe", "startupProbe", "volumeDevices", "dnsConfig", "hostAliases", "resourceClaims",
    "schedulingGates", "topologySpreadConstraints", "podFailurePolicy", "successPolicy", "aggregationRule",
    "windowsOptions", "seLinuxOptions", "sysctls", "appArmorProfile", "resizePolicy", "restartPolicyRules",
    "schedulingGroup", "workloadRef", "scheduling", "secrets", "readinessGates", "overhead", "os",
}  # fmt: skip
_VOLUMES = {"name", "emptyDir", "hostPath"}
_TEXTS = {"description", "$schema", "$id", "default"}
_POINTER = "/api/_definitions.json#/$defs/"


def kept(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types that the kinds need, of a version's whole list of types."""
    found: dict[str, Any] = {}
    wanted = list(KINDS.values())
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found[name] = _bare(definitions[name], name)
        wanted += _named(found[name])
    return dict(sorted(found.items()))


def _bare(schema: Any, name: str) -> Any:
    """Return a schema without texts and unused fields."""
    if isinstance(schema, list):
        return [_bare(each, name) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {
        key: value
        for key, value in schema.items()
        if not ((key in _TEXTS and isinstance(value, str)) or key.startswith("x-kubernetes"))
    }
    if isinstance(fields := bare.get("properties"), dict):
        bare["properties"] = {key: _bare(value, name) for key, value in fields.items() if _is_used(key, name)}
        bare["additionalProperties"] = bare.get("additionalProperties", False)
    pointer = bare.get("$ref")
    if isinstance(pointer, str):
        bare["$ref"] = f"#/$defs/{pointer.rpartition('/')[2]}"
    return {key: value if key == "properties" else _bare(value, name) for key, value in bare.items()}


def _is_used(field: str, of: str) -> bool:
    if of == "io.k8s.api.core.v1.Volume":
        return field in _VOLUMES
    return field not in _UNUSED


def _named(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _named(each)
    elif isinstance(schema, dict):
        if isinstance(pointer := schema.get("$ref"), str):
            yield pointer.rpartition("/")[2]
        for each in schema.values():
            yield from _named(each)


def _validator(version: str, kind: str) -> Draft202012Validator:
    types = json.loads(SCHEMAS.read_text())[version]
    return Draft202012Validator({"$ref": f"#/$defs/{KINDS[kind]}", "$defs": types})


def mistakes(made: Mapping[str, Any], version: str = VERSIONS[-1]) -> list[str]:
    """Return the mistakes in an object of the API, by the schema of a version."""
    found = _validator(version, str(made["kind"])).iter_errors(made)
    return [f"{error.json_path}: {error.message}" for error in found]
