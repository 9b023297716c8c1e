"""A task of dstack (https://dstack.ai/docs/reference/dstack.yml/task)."""

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

_CARDS = {"RTXA6000": "A6000"}  # names of its catalogue that do not follow from the driver's
_NOTES = (
    "dstack needs a fleet that may rent such a machine: https://dstack.ai/docs/concepts/fleets",
    "The bundle is lost with the machine: fetch it before the time is over, while `rent` is attached.",
    "After that the machine is given back at once, and otherwise when `max_duration` is over.",
)
_WAIT = """\
echo "waiting until the bundle is fetched"
until [ -e "$HOME/bench-fetched" ]; do sleep 5; done
"""


class Dstack:
    """dstack, which rents a machine for one task and attaches to it by ssh."""

    file_name = "bench.dstack.yml"

    def text(self, rental: Rental) -> str:
        """Return a task that measures, and then waits until the bundle is fetched or the time is over."""
        cloud, region, zone = (*(rental.cloud or "").split("/"), "", "")[:3]
        card = _CARDS.get(rental.card, rental.card)
        where = f"backends: {quoted([cloud])}\n" if cloud else ""
        where += f"regions: {quoted([region])}\n" if region else ""
        where += f"availability_zones: {quoted([zone])}\n" if zone else ""
        return (
            head("dstack", rental, self.commands(rental), _NOTES)
            + f"type: task\nname: {quoted(rental.name)}\n\n"
            + "files:\n"
            + "".join(
                f"  - local_path: {quoted(name)}\n    path: {quoted(f'~/{name}')}\n"
                for name in (CODE_FILE, MANIFEST_FILE)
            )
            + f"\ncommands:\n  - {block(script(rental) + _WAIT, 4)}\n"
            + where
            + f"resources:\n  gpu:\n    name: {quoted([card])}\n{_memory(rental)}"
            + f"    count: {rental.gpus}\n"
            + f"spot_policy: {'spot' if rental.spot else 'on-demand'}\n"
            + "creation_policy: reuse-or-create\n"
            + f"max_duration: {rental.minutes}m\n"
            + "idle_duration: 0s\n"
        )

    def commands(self, rental: Rental) -> Mapping[str, str]:
        """Return the commands; fetching also tells the machine that it may end."""
        fetch = f"scp '{rental.name}:bench-out/*.tar' . && ssh {rental.name} touch bench-fetched"
        return {
            "rent": f"dstack apply --yes --file {self.file_name}",
            "fetch": fetch,
            "give_back": f"dstack stop --yes {rental.name}",
        }


def _memory(rental: Rental) -> str:
    """Return the line that tells the A100's two sizes apart; other names have one size each."""
    return f"    memory: {rental.memory_gb}GB\n" if rental.card == "A100" else ""


TOOL = Dstack()
