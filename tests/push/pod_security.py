"""The rules of the pod security level "restricted" of Kubernetes 1.37, as a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HOST = ("hostNetwork", "hostPID", "hostIPC")
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
            "secret"}  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Return the fields of a pod's specification that the level "restricted" forbids."""
    own = pod.get("securityContext", {})
    found = [field for field in _HOST if pod.get(field)]
    found += [f"volume {v['name']}" for v in pod.get("volumes", []) if not set(v) - {"name"} <= _VOLUMES]
    found += ["sysctls"] if own.get("sysctls") else []
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        found += [f"{container['name']}: {what}" for what in _of_container(container, own)]
    return found


def _of_container(container: Mapping[str, Any], of_pod: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
        yield "runAsUser"
    profile = own.get("seccompProfile", of_pod.get("seccompProfile", {}))
    if profile.get("type") not in _PROFILES:
        yield "seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "hostPort"
