"""Documents that strangers make, without a fault: `tests.fuzz_commands` puts odd values into them."""

from __future__ import annotations

import json
from typing import Any

ANSWERS = {
    "who": "me\n1000\n1000\n/home/me",
    "clock": "1000000000.123",
    "os": "Debian GNU/Linux 12 (bookworm)",
    "memory": "MemTotal:       2113400000 kB\nMemAvailable:   2000000000 kB",
    "load": "128\n0.12 0.20 0.30 1/2000 4711",
    "place": "/home/me/bench\n/dev/sda1 1000000000 200000000 800000000 20% /home\nwritable",
    "programs": "",
    "cat /proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06",
    "nvidia-ctk --version": "NVIDIA Container Toolkit CLI version 1.17.8",
    "uname -m": "x86_64",
    "gpus": "\n".join(f"{i}, NVIDIA H200, 143771, 0, 0, 0" for i in range(8)),
    "gpu users": "root: 4711, python, 10 MiB",
    "slurm": "slurm 24.05.2",
    "python": "3.11\n",
    "apptainer": "apptainer version 1.3.4",
    "docker": json.dumps({
        "ServerVersion": "27.5.1", "DockerRootDir": "/var/lib/docker", "Runtimes": {"nvidia": {}},
        "DriverStatus": [["driver-type", "overlay2"]], "SecurityOptions": [],
    }),
    "docker images": f"sha256:{'a' * 64} [\"sha256:{'b' * 64}\"]",
    "docker room": "/dev/sda1 1000000000 200000000 800000000 20% /var",
    "cdi": "/etc/cdi/nvidia.yaml",
}  # fmt: skip

SBOM = {
    "bomFormat": "CycloneDX",
    "components": [
        {"purl": "pkg:pypi/torch@2.10.0"},
        {"purl": "pkg:deb/debian/libssl3@3.0.15-1?distro=debian-12&upstream=openssl"},
    ],
}  # fmt: skip
FEED = [
    {"id": name, "modified": "2026-01-01T00:00:00Z", "summary": "a text", "aliases": ["CVE-1"],
     "severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}], "database_specific": {"severity": "HIGH"},
     "affected": [{"package": {"ecosystem": ecosystem, "name": package}, "versions": ["2.10.0"],
                   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9.1"}]}]}]}
    for name, ecosystem, package in (("GHSA-1", "PyPI", "torch"), ("DSA-1", "Debian:12", "openssl"))
]  # fmt: skip
VEX = {
    "@context": "https://openvex.dev/ns/v0.2.0", "@id": "urn:x", "author": "a", "version": 1,
    "timestamp": "2026-01-01T00:00:00Z",
    "statements": [{"vulnerability": {"name": "CVE-1"}, "products": [{"@id": "pkg:pypi/torch@2.10.0"}],
                    "status": "not_affected", "justification": "component_not_present"}],
}  # fmt: skip

_QUOTE = {"date": "2026-06-01", "source": "quote 4711"}
PRICES: dict[str, Any] = {
    "schema": "bench/prices/v1", "currency": "USD", "life_years": 5, "shipped": True,
    "gpus": [{"gpu": ["NVIDIA H200"], "price": 30000, **_QUOTE}],
    "systems": [{"gpus": 8, "price": 12000, **_QUOTE}],
    "machines": [{"gpu": ["NVIDIA H200"], "gpus": 1, "price": 40000, "currency": "EUR", **_QUOTE}],
    "rents": [
        {"gpu": ["NVIDIA H200"], "price": 3.5, **_QUOTE},
        {"gpu": ["NVIDIA H200"], "gpus": 8, "price": 26, "provider": "a", "kind": "spot", **_QUOTE},
    ],
    "electricity": {"price": 0.2, "overhead": 1.5, **_QUOTE},
    "owning": {
        "capital": {"percent": 8, **_QUOTE},
        "colocation": {"price": 180, "overhead": 1.3, **_QUOTE},
        "operations": {"percent": 5, **_QUOTE},
        "residual": {"percent": 20, **_QUOTE},
    },
    "exchange": [{"currency": "EUR", "price": 1.1, **_QUOTE}],
}  # fmt: skip
CARD: dict[str, Any] = {
    "name": "NVIDIA X100", "compute_capability": "10.0", "memory_gib": 288, "bf16_tflops": 4000,
    "tf32_tflops": 2000, "fp32_tflops": 120, "memory_gb_per_second": 13000, "link_gb_per_second": 3600,
    "source": "a data sheet", "watts": 1000.0, "link": "NVLink", "measured_bf16_tflops": 2800, "note": "none",
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 128, "max_position_embeddings": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "vocab_size": 1000, "torch_dtype": "bfloat16", "auto_map": {"AutoModel": "m.M"},
}  # fmt: skip
WORDS = ("exit code 3", "recipe.batch_size", "half-weights", "column memory", "check xid", "/models/0/name")
