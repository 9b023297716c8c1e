"""Options of the commands that read bundles: `bench verify`, `show`, `compare`, `export` and others."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.base.distribution import pip_install
from bench.base.names import RENT_KINDS
from bench.base.shipped_data import manifest_path
from bench.cli import arguments
from bench.cli.arguments import DEVICE, DIR, FILE, FLAG, MODELS, REPEATABLE, Commands, add_command, add_json
from bench.cli.measure_options import add_engine


def add_reports(commands: Commands) -> None:
    """Add the commands that read bundles, predict, or show prices."""
    _add_verify(commands)
    _add_show(commands)
    _add_compare(commands)
    _add_export(commands)
    _add_reproduce(commands)
    _add_predict(commands)
    _add_prices(commands)
    _add_paper(commands)


def _add_verify(commands: Commands) -> None:
    summary = "verify that bundles are what they claim to be"
    verify = add_command(commands, "verify", summary, "verify.verify", paged=True, mixed=True)
    verify.add_argument("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, folders, patterns")
    _add_lists(verify)
    add_json(verify, "the verdicts")


def _add_show(commands: Commands) -> None:
    summary = "show one bundle at a glance: its verdict, every setting as a bar, clocks and power"
    show = add_command(commands, "show", summary, "show.show", paged=True)
    show.add_argument("bundle", type=Path, metavar="BUNDLE", help="the file to show")
    show.add_argument("--all", dest="every", **FLAG, help="every setting, also the slow ones")
    _add_lists(show)


def _add_compare(commands: Commands) -> None:
    summary = "rank machines by time and cost, from bundles"
    compare = add_command(commands, "compare", summary, "compare.compare", paged=True, mixed=True)
    add = compare.add_argument
    add("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, folders, patterns")
    _add_lists(compare)
    _add_quotes(add)
    dollars = "your budget in US dollars"
    add("--budget-usd", dest="budget", type=arguments.positive, metavar="N", help=dollars)
    deadline = "the longest time that a run may take: 14, 14d, 36h, 2w, or until the end of 2027-01-31"
    add("--deadline", dest="deadline_days", type=arguments.deadline, metavar="TIME", help=deadline)
    runs = "how many runs the budget is for (default: 1)"
    add("--runs", type=arguments.count, default=1, metavar="N", help=runs)
    share = "share of its lifetime in which an owned machine trains (default: 100, as in the paper)"
    add("--utilisation", type=arguments.percent, default=1.0, metavar="PERCENT", help=share)
    _add_energy(add)
    add("--rank-all", **FLAG, help="rank all bundles of a model together, and mark what differs")
    machine = "extrapolate to a machine that was not measured, such as 8xh100; repeatable"
    add("--estimate", **REPEATABLE, metavar="NxGPU", help=machine)
    add("--settings", **FLAG, help="also show every setting that each bundle tried")
    arguments.add_columns(compare)
    add("--format", choices=("table", "json", "csv", "markdown"), help="default: table")
    add("--json", dest="as_json", **FLAG, help="equivalent to --format json")
    add("--html", **FILE, help="write a report as one file that needs no network")
    add("--plots", **DIR, help="write every plot as SVG")
    add("--png", **FLAG, help=f"with --plots: also as PNG ({pip_install('png')})")


def _add_export(commands: Commands) -> None:
    export = add_command(commands, "export", "write a measured setting as a training script", "export.export")
    add = export.add_argument
    add("bundle", type=Path, metavar="BUNDLE", help="the file of a run that measured the setting")
    kinds = ("script", "trainer", "accelerate", "deepspeed", "standalone")
    add("--to", required=True, choices=kinds, help="standalone: one file that needs no bench")
    add("folder", **DIR, help="a new or empty folder")
    add("--model", metavar="NAME", help="the model to export, if the bundle holds several")
    add("--setting", metavar="LABEL", help="the setting to export (default: the model's fastest)")
    plain = "with standalone: leave out what is code of bench and only makes steps faster"
    add("--plain", action="store_true", help=plain)
    _add_lists(export)


def _add_reproduce(commands: Commands) -> None:
    summary = "run a bundle's manifest, or a published figure's, on this machine, and compare"
    reproduce = add_command(commands, "reproduce", summary, "reproduce.reproduce")
    add = reproduce.add_argument
    add("bundle", type=Path, nargs="?", metavar="BUNDLE", help="the file of the first run")
    published = "measure a throughput that somebody published, in place of a bundle; list shows all rows"
    add("--published", metavar="ROW", help=published)
    add("--published-in", **FILE, help="a file of published rows (default: those that ship with bench)")
    add("--with", type=Path, dest="again", metavar="BUNDLE", help="bundle of the second run, if it exists")
    add("-o", "--out", **DIR, default=Path("out"), help="folder for runs (default: out)")
    _add_lists(reproduce)
    arguments.add_budget(reproduce)
    add("--key", **FILE, help="Ed25519 SSH key that signs (default: bench's own)")
    add("--device", **DEVICE, help="cpu: use no GPU (default: auto)")
    add_engine(reproduce, default_image="the image that the bundle ran in")
    add("--any-stack", **FLAG, help="run even if the installed software differs")
    add("--run-code", **FLAG, help="run the code of modules that the bundle brings along")
    differ = "how much two runs of one machine may differ (default: 2)"
    add("--tolerance", type=arguments.percent, default=0.02, metavar="PERCENT", help=differ)
    add_json(reproduce, "the verdict")


def _add_predict(commands: Commands) -> None:
    summary = "predict days and cost on machines that are not here, without a GPU"
    predict = add_command(commands, "predict", summary, "predict.predict", paged=True)
    add = predict.add_argument
    add("manifest", type=manifest_path, metavar="MANIFEST", help=MODELS)
    machines = "machines, separated by commas: h200,8xh100,64xb200; all: every known card, 1 and 8 of it"
    add("--gpu", dest="gpus", default="all", metavar="NxGPU,...", help=f"{machines} (default: all)")
    _add_quotes(add)
    dollars = "only machines on which a rented run costs at most this"
    add("--budget-usd", dest="budget", type=arguments.positive, metavar="N", help=dollars)
    deadline = "only machines that are predicted to end before it: 14d, 36h, 2w, 2027-01-31"
    add("--deadline", dest="deadline_days", type=arguments.deadline, metavar="TIME", help=deadline)
    spec = "a file that describes a card which bench does not know; may be repeated"
    add("--gpu-spec", dest="specs", action="append", type=Path, default=[], metavar="FILE", help=spec)
    _add_energy(add)
    often = "the mean time between interruptions of a machine of up to eight GPUs: 12h, 30d (default: none)"
    add("--interrupted-every", type=arguments.duration, metavar="TIME", help=often)
    restart = "from an interruption until training goes on (default: 10m)"
    add("--restart", type=arguments.duration, default=600.0, metavar="TIME", help=restart)
    save = "between checkpoints (default: 30m)"
    add("--save-every", type=arguments.duration, default=1800.0, metavar="TIME", help=save)
    add("--own", **FLAG, help="costs of machines that you own, in place of rents")
    add("--explain", **FLAG, help="show where each figure came from")
    add("--html", **FILE, help="write tables and pictures as one file that needs no network")
    add("--plots", **DIR, help="draw days against costs as SVG")
    add("--png", **FLAG, help="with --plots: also as PNG")
    measured = "with --plots or --html: bundles, or folders of them, to draw beside; may be repeated"
    add("--measured", action="append", type=Path, default=[], metavar="BUNDLE", help=measured)
    add("--format", choices=("table", "csv"), help="default: table")
    add_json(predict, "the predictions")


def _add_prices(commands: Commands) -> None:
    summary = "show prices to rent and to buy, and read the price lists of others"
    prices = add_command(commands, "prices", summary, "prices.prices", paged=True, mixed=True)
    add = prices.add_argument
    add("words", nargs="*", metavar="GPU", help="only these GPUs; or: import FILE, to read a price list")
    add("--prices", **FILE, help="your quotes, beside the shipped ones")
    add("--kind", choices=RENT_KINDS, help="only rents of this kind")
    old = "only quotes that are older, such as 30d; exit code 1 if there are any"
    add("--stale", dest="stale_days", type=arguments.days, metavar="AGE", help=old)
    add("--provider", metavar="NAME", help="import: whose prices these are, if the list does not say it")
    add("--date", metavar="DAY", help="import: the day of the prices, if the list does not say it")
    add("-o", "--out", **FILE, help="import: the file of prices to write (default: stdout)")
    add_json(prices, "the quotes")


def _add_paper(commands: Commands) -> None:
    paper = add_command(
        commands, "paper", "show the paper's claims, and what they imply", "paper.paper", paged=True
    )
    paper.add_argument("--figures", **DIR, help="draw Figures 7, 12 and 13 as SVG")
    paper.add_argument("--png", **FLAG, help="with --figures: also as PNG")
    add_json(paper, "tables and claims")


def _add_quotes(add: Callable[..., object]) -> None:
    add("--prices", **FILE, help="your quotes, which take precedence over the shipped ones (bench prices)")
    rent = "the kind of rent that counts (default: on-demand)"
    add("--rent", choices=RENT_KINDS, default="on-demand", help=rent)


def _add_energy(add: Callable[..., object]) -> None:
    overhead = "kWh of the whole node for each kWh of its GPUs, as you measured it: 1.5"
    add("--node-overhead", type=arguments.overhead, metavar="N", help=overhead)
    grams = "grams of CO2 for each kWh where the machine stands (default: no CO2 is stated)"
    add("--gco2-per-kwh", type=arguments.positive, metavar="N", help=grams)


def _add_lists(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--trust", **FILE, help="a public key or an allowed_signers file that must vouch for the bundle")
    add("--revoked", **FILE, help="a revocation list (KRL) of ssh-keygen, in addition to bench's own")
