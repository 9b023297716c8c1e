"""Names and units that several folders share. Pure; imports nothing of bench, so any module may import it."""

from __future__ import annotations

from typing import Literal, get_args

GIB = 2**30  # bytes
CONTAINER_ENGINES = ("docker", "podman", "apptainer")  # in the order in which "auto" tries them
ENGINES = (*CONTAINER_ENGINES, "none")  # choices of --engine; "none": the machine's own Python
ENGINES_OF_NODES = (*CONTAINER_ENGINES, "venv", "none")  # of bench push; "venv" installs an environment
ANY_PYTHON = "python3"  # the default of --python, which for the engine "venv" means any that fits
IN_POD = "kubernetes"  # the engine of a run in a pod, whose image the cluster brings
WITHOUT_CONTAINER = ("venv", "none")  # engines that run bench as an ordinary process
ENGINES_WITH_STORE = ("docker", "podman")  # keep images by name, and pull them; Apptainer's images are files
IMAGE_VARIANTS = ("cuda13", "cuda12.8", "cpu")  # of data/images.json, newest CUDA first
RentKind = Literal["on-demand", "spot", "reserved"]
RENT_KINDS = get_args(RentKind)
RENTAL_TOOLS = ("skypilot", "dstack")  # of bench rent: each is a module of bench/push/rent
VISIBLE = "CUDA_VISIBLE_DEVICES"  # the variable that chooses GPUs; kept in bundles as their UUIDs
# The variable that passes an image's identity into its container, as JSON: {"config": ..., "diff_ids": [...]}
IMAGE_VARIABLE = "BENCH_IMAGE"
IMAGE_SBOM = "usr/share/bench/sbom.cdx.json"  # path in an image of the list of what is installed there
# The variable by which environment/confined.py tells bench which environment it runs in, as JSON
ENVIRONMENT_VARIABLE = "BENCH_ENVIRONMENT"
