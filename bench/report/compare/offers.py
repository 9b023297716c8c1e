"""Price ranked rows: buying and renting each machine, with the quotes behind every amount. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.base.gpu_catalogue import GpuModel, power_limit_watts
from bench.base.strict_json import field_values
from bench.records.spread import on_another_machine
from bench.report.compare.appraisal import AppraisedMachine, AppraisedOffer, PricedMachine
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.decision import Wish
from bench.report.compare.energy_factors import NO_FACTORS, EnergyFactors
from bench.report.compare.prices import Gap, PriceBook, Priced, for_nodes


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's questions and prices."""

    prices: PriceBook
    wish: Wish
    utilisation: float = 1.0  # share of its life that an owned machine trains
    rank_all: bool = False  # rank rows that differ in their conditions, too
    wanted: tuple[tuple[GpuModel, int], ...] = ()  # machines to estimate: kind and number of GPUs
    own_prices: bool = False  # the user gave a file of prices
    energy: EnergyFactors = NO_FACTORS

    @property
    def used_days(self) -> float:
        """Days that an owned machine trains in its life."""
        return self.prices.life_days * self.utilisation


@dataclass(frozen=True, slots=True)
class Offer(AppraisedOffer):
    """An offer to buy or rent a machine, with every figure that the outputs show."""

    price: float  # to buy the machine, or to rent it for an hour
    gpus: int  # of the machine that is paid for, which may have more than trained
    quotes: tuple[str, ...]  # each with amount, source and date
    unmetered: bool  # electricity has a price, but this machine's power was not measured
    units_per_currency: float | None = None  # tokens, images or pairs that a unit of the currency trains


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A ranked row with its prices, or why they are missing."""

    row: RankedRow
    machine: PricedMachine
    amounts: tuple[Priced, ...]  # to buy, then to rent, as far as there are quotes
    gaps: tuple[str, ...]
    unmetered: bool

    def offers(self, appraised: AppraisedMachine) -> tuple[Offer, ...]:
        """Return this row's offers: its prices with their quotes, and the costs that follow from them."""
        return tuple(
            Offer(
                **field_values(offer),
                price=priced.amount,
                gpus=priced.gpus,
                quotes=priced.quotes,
                unmetered=offer.kind == "buy" and self.unmetered,
                units_per_currency=self.row.units / offer.run_cost if offer.run_cost > 0 else None,
            )
            for offer, priced in zip(appraised.offers, self.amounts, strict=True)
        )


def priced_row(row: RankedRow, book: PriceBook) -> PricedRow:
    """Price buying and renting the row's machine, and say why prices are missing."""
    machine, days = row.machine, on_another_machine(row.days)
    if machine.kind != "cuda":
        unpriced = PricedMachine(machine.label, days, bool(row.marks), None, 0.0, 0.0, None)
        return PricedRow(row, unpriced, (), (f"no price for a CPU: {machine.name}",), unmetered=False)
    gpus_a_node = machine.devices // machine.nodes
    buy = for_nodes(book.to_buy(machine.name, gpus_a_node), machine.nodes)
    rent = for_nodes(book.to_rent(machine.name, gpus_a_node), machine.nodes)
    electricity, quotes = book.electricity_of(row.kwh)
    upkeep = 0.0
    if isinstance(buy, Priced):
        upkeep, of_upkeep = book.upkeep_of(buy, power_limit_watts(machine.name, machine.devices))
        buy = replace(buy, quotes=(*buy.quotes, *quotes, *of_upkeep))
    return PricedRow(
        row,
        PricedMachine(
            label=machine.label,
            days=days,
            marked=bool(row.marks),
            price=buy.amount if isinstance(buy, Priced) else None,
            electricity=electricity,
            upkeep=upkeep,
            rent=rent.amount if isinstance(rent, Priced) else None,
        ),
        tuple(price for price in (buy, rent) if isinstance(price, Priced)),
        tuple(price.reason for price in (buy, rent) if isinstance(price, Gap)),
        unmetered=book.electricity is not None and row.kwh is None,
    )
