"""Count the zoo's models without contents, and write the counts that ship with bench.

    PYTHONPATH=. python benchmarks/counts.py

Run it when a model of the zoo, the counting code or the version of transformers changes. Takes seven minutes.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from typing import Any

from bench.base.shipped_data import DATA
from bench.base.strict_json import pretty_json, to_json
from bench.training.models import has_formulas
from bench.training.models.dry_build import dry_build
from bench.training.models.shipped_counts import FILE, digest_of
from bench.training.models.zoo import zoo_model, zoo_names


def main() -> None:
    """Count every model of the zoo and write the counts that bench ships; ends if one cannot be."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.parse_args()
    counts: dict[str, Any] = {}
    for name in zoo_names():
        found = zoo_model(name)
        assert found
        if has_formulas(found.model):
            continue
        build = dry_build(found.model, name)
        if build.mistakes or build.counted is None:
            sys.exit(f"{name} is not counted: {build}")
        counts[digest_of(found.model)] = to_json(build.counted)
        print(name, file=sys.stderr)
    document = {"transformers": version("transformers"), "models": counts}
    (DATA / FILE).write_bytes(pretty_json(document))


if __name__ == "__main__":
    main()
