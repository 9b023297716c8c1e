"""Read what an environment is made of from the locks in bench's repository, on the operator's machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.shipped_data import locks_folder
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import canonical_json
from bench.environment.interpreter import Interpreter
from bench.environment.wheel_tags import misfit
from bench.images.fetch import accepted_files
from bench.images.locked_wheels import LockedWheel, wheels_of
from bench.images.locks import Pin, read_built, read_pins
from bench.images.variants import Variant, images

_FORM = "bench/environment/v2"  # changes with the files that an installation writes of the same wheels
_ADVICE = "run in bench's repository, which has the locks, or name it: --source DIR"


@dataclass(frozen=True, slots=True)
class LockedEnvironment:
    """The packages of a variant's lock, without compiled kernels for which there is no wheel."""

    variant: Variant
    lock: str  # sha256 of the lock file, as sha256:...
    packages: Mapping[str, Pin]
    without: tuple[str, ...]
    wheels: Mapping[str, tuple[LockedWheel, ...]] = field(default_factory=dict)  # those known, by package

    @property
    def pins(self) -> str:
        """The sha256 of the packages and of the digests that may be installed, and of how that is done."""
        lines = [self.packages[name].line for name in sorted(self.packages)]
        return sha256(canonical_json([_FORM, *lines]))

    def contents(self, name: str) -> list[str]:
        """Return the known digests of the contents that a package may have."""
        return sorted({wheel.contents for wheel in self.wheels.get(name, ())})

    def sizes(self, python: Interpreter) -> dict[str, int]:
        """Return the known sizes, in bytes, of the packages' wheels for a Python."""
        fitting = (
            (name, [each for each in known if fits(python, each.file)]) for name, known in self.wheels.items()
        )
        return {name: found[0].bytes for name, found in fitting if found}


def read_locked(
    source: Path | None, variant: Variant, python: str, wheelhouse: Path | None
) -> LockedEnvironment:
    """Read the lock of a variant for a Python, as major.minor, of the node.

    Compiled kernels are on no index: those are installed whose wheels are in `wheelhouse`. Without any of
    them, the packages that nothing but kernels needs are left out too.
    """
    root = source or locks_folder()
    path = root / variant.lock
    if not path.exists():
        raise BadInput(f"has no {variant.lock}", where=str(root), advice=_ADVICE)
    packages = dict(read_pins(path))
    kernels = read_built(root, variant) if python == images().python else {}
    here = accepted_files(wheelhouse, kernels) if wheelhouse else {}
    without = tuple(name for name in variant.kernels if name in packages and name not in here)
    packages |= {name: kernels[name] for name in here}
    for name in (*without, *(() if here else variant.for_kernels)):
        packages.pop(name, None)
    wheels = {name: wheels_of(pin) for name, pin in packages.items()}
    return LockedEnvironment(variant, f"sha256:{file_sha256(path)}", packages, without, wheels)


def fits(python: Interpreter, file_name: str) -> bool:
    """Whether a wheel fits the Python of a node."""
    return misfit(file_name, python) is None
