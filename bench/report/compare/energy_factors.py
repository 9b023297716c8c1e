"""Energy of a whole node and its CO2, by factors that the user gives: none is assumed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.records.text import figures


@dataclass(frozen=True, slots=True)
class EnergyFactors:
    """Factors on the energy of GPUs; None: the factor is not given, and its figure is left out."""

    node_overhead: float | None = None  # kWh of the node for each kWh of its GPUs
    grams_co2_per_kwh: float | None = None

    def node_kwh(self, gpus_kwh: float | None) -> float | None:
        """Return the energy of the whole node; None if that of its GPUs or the overhead is unknown."""
        if gpus_kwh is None or self.node_overhead is None:
            return None
        return gpus_kwh * self.node_overhead

    def co2_kg(self, gpus_kwh: float | None) -> float | None:
        """Return the CO2 of the node's energy or, without a factor for the node, of its GPUs' energy."""
        if gpus_kwh is None or self.grams_co2_per_kwh is None:
            return None
        return gpus_kwh * (self.node_overhead or 1.0) * self.grams_co2_per_kwh / 1000

    @property
    def texts(self) -> tuple[str, ...]:
        """Sentences about the figures: their content, and the factors that they follow from."""
        texts = []
        if self.node_overhead is not None:
            texts.append(f"node kWh: the GPUs' kWh times {figures(self.node_overhead, 6)} (--node-overhead)")
        if self.grams_co2_per_kwh is not None:
            grams = f"{figures(self.grams_co2_per_kwh, 6)} g for each kWh (--gco2-per-kwh)"
            alone = "of the GPUs alone, without CPUs, memory, fans and cooling: --node-overhead adds them"
            texts.append(f"kg CO2: {grams}, {alone if self.node_overhead is None else 'of the node'}")
        return tuple(texts)


NO_FACTORS = EnergyFactors()
