"""A task of SkyPilot (https://docs.skypilot.co/en/latest/reference/yaml-spec.html)."""

from __future__ import annotations

from collections.abc import Mapping

from bench.push.rent.rental import (
    CODE_FILE,
    MANIFEST_FILE,
    Rental,
    block,
    head,
    quoted,
    script,
)

_CARDS = {"RTX6000Ada": "RTX6000-Ada"}  # names of its catalogue that do not follow from the driver's
_NOTES = (
    "The bundle is lost with the machine: fetch it before the time is over.",
    "`autostop` counts from when the machine is up, also while a run goes on. `setup` would precede it.",
)


class SkyPilot:
    """SkyPilot, which rents a machine as a cluster of one node."""

    file_name = "bench.sky.yaml"

    def text(self, rental: Rental) -> str:
        """Return a task that measures; SkyPilot gives the machine back after the rented minutes."""
        infra = f"  infra: {quoted(rental.cloud)}\n" if rental.cloud else ""
        accelerators = quoted(f"{_card(rental)}:{rental.gpus}")
        return (
            head("SkyPilot", rental, self.commands(rental), _NOTES)
            + f"name: {quoted(rental.name)}\n\n"
            + f"resources:\n{infra}"
            + f"  accelerators: {accelerators}\n"
            + f"  use_spot: {quoted(rental.spot)}\n"
            + f"  autostop:\n    idle_minutes: {rental.minutes}\n    down: true\n    wait_for: none\n\n"
            + "file_mounts:\n"
            + "".join(
                f"  {quoted(f'~/{name}')}: {quoted(f'./{name}')}\n" for name in (CODE_FILE, MANIFEST_FILE)
            )
            + f"\nrun: {block(script(rental))}"
        )

    def commands(self, rental: Rental) -> Mapping[str, str]:
        """Return the commands, which name the cluster after the rental."""
        return {
            "rent": f"sky launch --yes --cluster {rental.name} {self.file_name}",
            "fetch": f"rsync -a --include='*.tar' --exclude='*' {rental.name}:bench-out/ .",
            "give_back": f"sky down --yes {rental.name}",
        }


def _card(rental: Rental) -> str:
    name = _CARDS.get(rental.card, rental.card)
    return f"{name}-80GB" if name == "A100" and rental.memory_gb == 80 else name


TOOL = SkyPilot()
