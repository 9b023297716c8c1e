"""Before anything starts: what a node is, what it is to run, and the image or the code that it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from bench.base.errors import EnvironmentCannot
from bench.images.engines.preflight import OUT_BYTES, check_identity
from bench.images.variants import find_variant
from bench.node_check.any_manifest import wanted_image
from bench.push import ship as shipping
from bench.push.image_store import Shippable, variant_name
from bench.push.node_findings import Need, judge
from bench.push.node_survey import Survey, survey
from bench.push.ship import Shipped
from bench.push.visit import Visit
from bench.records.text import size_text

ENGINES = ("docker", "podman", "apptainer")


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """What this node is to run, and what it says of itself."""

    found: Survey
    engine: str
    image: Shippable | None


def preflight(t: Visit) -> ChosenEngine:
    order, host = t.order, t.part.host
    engines = ENGINES if order.engine == "auto" else (order.engine,)
    place = f'"{order.place}"' if order.place else '"$HOME/.bench"'
    found = survey(t.node, place, engines, host.python or order.python)
    t.phase("preflight", _machine(found))
    chosen = _choose(t, found, engines)
    t.but(engine=chosen.engine, image=chosen.image.config if chosen.image else None)
    findings = judge(found, _need(t, chosen))
    t.but(findings=tuple(findings))
    for finding in findings:
        t.phase("preflight", f"{finding.level}: {finding.what}  ({finding.advice or 'see for yourself'})")
    stops = [finding for finding in findings if finding.level == "stop"]
    if stops and not order.anyway:
        more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
        raise EnvironmentCannot(f"{stops[0].what}{more}", advice=stops[0].advice or None)
    t.phase("preflight", f"{'in spite of that' if stops else 'ok'}: {_sound(chosen)}")
    check_identity(
        chosen.image.facts.identity if chosen.image else None, _wanted(t), order.image or "the image"
    )
    return chosen


def _wanted(t: Visit) -> str | None:
    return None if t.order.pull else wanted_image(t.order.manifest)


def _choose(t: Visit, found: Survey, engines: tuple[str, ...]) -> ChosenEngine:
    engine = next(
        (name for name in engines if name in found.engines and found.engines[name].facts), engines[0]
    )
    if engine == "none" or t.order.pull or found.engines[engine].facts is None:
        return ChosenEngine(found, engine, None)  # without an engine, there is nothing to choose an image for
    image = t.shared.depot.image(t.order.image, None if t.order.on_cpu else found.host.driver)
    return ChosenEngine(found, engine, image)


def _need(t: Visit, chosen: ChosenEngine) -> Need:
    image, order = chosen.image, t.order
    present = (
        image is not None
        and chosen.engine != "apptainer"
        and shipping.present(chosen.found, chosen.engine, image)
    )
    variant = find_variant(variant_name(image.facts, str(image.path))) if image else None
    bare = variant is not None and variant.driver is None
    return Need(
        chosen.engine,
        variant,
        on_cpu=order.on_cpu or bare,
        gpus=None if order.on_cpu else order.manifest.gpus,
        checks=order.checks,
        place_bytes=OUT_BYTES + (image.packed_bytes if image and not present else 0),
        engine_bytes=image.unpacked_bytes if image and not present else 0,
        slurm=order.slurm is not None,
    )


def report_dry_run(t: Visit, chosen: ChosenEngine) -> None:
    image, to_send = chosen.image, 0
    if image is not None and not shipping.present(chosen.found, chosen.engine, image):
        held = shipping.layers_held(chosen.found, chosen.engine, image)
        to_send = sum(layer.size for layer in image.facts.layers[held:])
    t.but(to_send_bytes=to_send, changed=True)
    t.end("would")


def ship_image(t: Visit, chosen: ChosenEngine) -> Shipped:
    t.phase("ship")
    with t.shared.shipping:
        t.heed_stop()
        if chosen.engine == "none":
            landed = shipping.ship_code(t.node, chosen.found.place, t.shared.depot, t.sent)
        elif t.order.pull:
            wanted = wanted_image(t.order.manifest)
            landed = shipping.pull(t.node, chosen.found, chosen.engine, t.order.pull, wanted)
        elif chosen.image is None:
            raise EnvironmentCannot(f"{chosen.engine} does not answer: no image can be loaded")
        else:
            landed = shipping.ship(t.node, chosen.found, chosen.engine, chosen.image, t.shared.depot, t.sent)
    t.but(sent_bytes=landed.sent_bytes, changed=landed.changed)
    if landed.identity is not None:
        t.but(image=landed.identity.config)
    t.phase("ship", f"{size_text(landed.sent_bytes)} sent, verified" if landed.changed else "nothing to send")
    return landed


def _sound(chosen: ChosenEngine) -> str:
    found = chosen.found
    facts = found.engines[chosen.engine].facts if chosen.engine in found.engines else None
    engine = f"{facts.name} {facts.version}{' + CDI' if facts.gpus == 'cdi' else ''}" if facts else None
    parts = [
        f"disk {size_text(found.place_free_bytes)} free",
        engine or f"Python {found.python}",
        f"memory {size_text(found.available_bytes)} free",
        f"clock {found.skew_seconds:+.0f} s",
    ]
    return " · ".join(parts)


def _machine(found: Survey) -> str:
    gpus = found.gpus
    what = f"{len(gpus)}x {gpus[0].name}" if gpus else f"{found.cores} cores, no GPU"
    driver = f"   driver {found.host.driver}" if found.host.driver else ""
    return f"{what}{driver}   {found.os}"
