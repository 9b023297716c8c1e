"""Factors for the energy of a whole node and its CO2, as a caller gives them."""

from __future__ import annotations

from bench.base import quantities
from bench.library.given import quantity
from bench.report.compare.energy_factors import EnergyFactors


def energy_of(node_overhead: float | str | None, gco2_per_kwh: float | str | None) -> EnergyFactors:
    """Return the factors; BadInput for one that no node or grid can have."""
    overhead = grams = None
    if node_overhead is not None:
        overhead = quantity("node_overhead", str(node_overhead), quantities.overhead)
    if gco2_per_kwh is not None:
        grams = quantity("gco2_per_kwh", gco2_per_kwh, quantities.positive)
    return EnergyFactors(overhead, grams)
