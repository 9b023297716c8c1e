"""The examples at the end of each command's help. A test parses every one of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "bench": (
        "bench plan manifests/hour.json --gpu h100",
        "bench run manifests/quickstart.json",
        "bench compare out/*.tar",
    ),
    "bench init": (
        "bench init my.json",
        "bench init mine.json --model my-model/config.json --train-on 20B --hours 1 --rent '2.50 h100'",
    ),
    "bench run": (
        "bench run manifests/hour.json --budget 60m",
        "bench run manifests/hour.json --resume",
    ),
    "bench plan": (
        "bench plan manifests/hour.json --gpu h100 --gpus 8",
        "bench plan llama-3.1-8b --gpu h100 --gpus 8",
        "bench plan --list-models llama 1b",
    ),
    "bench check": (
        "bench check --level quick",
        "bench check --nagios --level passive --keep-days 30",
    ),
    "bench verify": ("bench verify out/*.tar --trust keys.pub",),
    "bench show": ("bench show out/one.tar",),
    "bench compare": (
        "bench compare bundles/ --deadline 14d --budget-usd 20,000",
        "bench compare bundles/ --html report.html",
    ),
    "bench export": (
        "bench export bundles/one.tar --to script training/",
        "bench export bundles/one.tar --to standalone alone/",
    ),
    "bench reproduce": (
        "bench reproduce bundles/one.tar",
        "bench reproduce --published list",
    ),
    "bench predict": (
        "bench predict manifests/hour.json --gpu h200,8xh100 --deadline 30d",
        "bench predict llama-3.1-8b --gpu 8xh100",
    ),
    "bench prices": (
        "bench prices h100 h200 --kind spot",
        "bench prices --stale 30d",
    ),
    "bench paper": ("bench paper --figures figures/",),
    "bench push": (
        "bench push manifests/hour.json gpu1 gpu2 --budget 60m",
        "bench push manifests/node-check.json -i hosts.yml",
    ),
    "bench status": ("bench status --json",),
    "bench attach": ("bench attach gpu1",),
    "bench fetch": ("bench fetch gpu1",),
    "bench cancel": ("bench cancel --kill gpu1",),
    "bench clean": ("bench clean gpu1",),
    "bench rent": ("bench rent skypilot manifests/hour.json --gpu h100 --minutes 60",),
    "bench challenge": ("bench challenge manifests/hour.json -o challenge.json",),
    "bench certify": ("bench certify request.json",),
    "bench receive": ("bench receive RUN.tar",),
    "bench keys": ("bench keys new",),
    "bench keys new": ("bench keys new",),
    "bench keys show": ("bench keys show",),
    "bench keys trust": ("bench keys trust operator.pub --as operator",),
    "bench keys revoke": ("bench keys revoke stolen.pub",),
    "bench image": ("bench image build cuda13 --load docker",),
    "bench image build": ("bench image build cuda13 --load docker",),
    "bench image kernels": ('bench image kernels cuda13 --arch "8.0;9.0" --jobs 32',),
    "bench image add": (
        "bench image add bench-cuda13.tar out/images/bench-cuda13-kernels.tar -o with-kernels.tar",
    ),
    "bench image id": ("bench image id bench:cuda13",),
    "bench image sbom": ("bench image sbom bench:cuda13",),
    "bench image save": ("bench image save bench:cuda13 -o bench-cuda13.tar",),
    "bench image load": ("bench image load bench-cuda13.tar --engine podman",),
    "bench image push": ("bench image push bench-cuda13.tar registry.site/bench:cuda13 --key release",),
    "bench image pull": (f"bench image pull registry.site/bench@sha256:{'0' * 64} --key release.pub",),
    "bench image attest": ("bench image attest out/images/bench-cuda13.tar -o attested/",),
    "bench image verify": ("bench image verify bench-cuda13.tar built.dsse.json --key builder.pub",),
    "bench image scan": ("bench image scan bench-cuda13.tar --feed osv/",),
    "bench explain": (
        "bench explain exit code 3",
        "bench explain recipe.batch_size",
        "bench explain half-weights",
    ),
    "bench help": ("bench help image build",),
    "bench completion": ('eval "$(bench completion bash)"',),
}


def with_examples(program: str, epilog: str | None) -> str | None:
    """Return the end of a program's help: its examples, then `epilog`."""
    lines = [f"  {line}" for line in EXAMPLES.get(program, ())]
    head = f"example{'s' * (len(lines) > 1)}:\n"
    return "\n\n".join(filter(None, [head + "\n".join(lines) if lines else None, epilog])) or None
