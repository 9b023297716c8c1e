"""The kernels of this image that have no code for this machine's GPUs, by the image's kernel layer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.kernel_list import KERNEL_LIST, modules_of, read_kernels


def modules_without_code(capabilities: Iterable[str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the modules of kernels that cannot run on a GPU of one of these compute capabilities.

    Empty outside of an image with a kernel layer; BadInput if the layer's list is unreadable.
    """
    listed = root / KERNEL_LIST
    if not listed.exists():
        return ()
    try:
        kernels = read_kernels(listed.read_bytes())
    except ValueError as error:
        raise BadInput(f"is not a list of kernels: {error}", where=str(listed)) from None
    there = set(capabilities)
    return modules_of(w.name for w in kernels.wheels if not all(w.runs_on(each) for each in there))
