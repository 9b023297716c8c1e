"""Options of the operator's commands: `bench challenge`, `certify`, `receive` and `keys`."""

from __future__ import annotations

from pathlib import Path

from bench.base.shipped_data import manifest_path
from bench.cli.arguments import FILE, FLAG, MODELS_OR_CHECK, TIME, Commands, ShowHelp, add_command


def add_operator(commands: Commands) -> None:
    """Add `bench challenge`, `certify` and `receive`."""
    summary = "request a run from a node that need not be trusted"
    challenge = add_command(commands, "challenge", summary, "challenge.challenge")
    challenge.add_argument("manifest", type=manifest_path, metavar="MANIFEST", help=MODELS_OR_CHECK)
    challenge.add_argument("-o", "--out", **FILE, help="default: challenge-RUN.json")
    again = "make another challenge for this run, for example if its node was lost"
    challenge.add_argument("--run", dest="run_id", metavar="ID", help=again)

    certify = add_command(commands, "certify", "certify a run's key with your SSH key", "challenge.certify")
    certify.add_argument("request", type=Path, metavar="REQUEST", help="request.json from the run's folder")
    certify.add_argument("-o", "--out", **FILE, help="default: run-cert.pub beside REQUEST")
    valid = "how long the certificate is valid from now, 7d at most (default: 2h)"
    certify.add_argument("--valid", dest="valid_seconds", **TIME, default=7200.0, help=valid)

    summary = "verify the bundle of a challenged run, and countersign it"
    receive = add_command(commands, "receive", summary, "challenge.receive")
    receive.add_argument("bundle", type=Path, metavar="BUNDLE", help="the file that the node made")
    receive.add_argument("-o", "--out", **FILE, help="default: replace BUNDLE")

    key = "your SSH key, or the .pub of a key in an agent or a token (default: bench's own)"
    for command in (certify, receive):
        command.add_argument("--key", **FILE, help=key)
    for command in (challenge, certify, receive):
        command.add_argument("--ledger", **FILE, help="default: ~/.local/state/bench/ledger.jsonl")


def add_keys(commands: Commands) -> None:
    """Add `bench keys` with its actions."""
    keys = commands.add_parser(
        "keys",
        help="manage your key, trusted keys and revocations",
        description="Manage your key, the keys that you trust, and the keys that are revoked.",
    )
    keys.set_defaults(call=ShowHelp(keys))
    actions = Commands(keys, None, title="actions", metavar="ACTION")

    new = add_command(actions, "new", "make a key with ssh-keygen", "keys.new")
    show = add_command(actions, "show", "show your key, and how others trust it", "keys.show")
    for command in (new, show):
        command.add_argument("file", **FILE, nargs="?", help="default: ~/.config/bench/id_ed25519")
    new.add_argument("--token", **FLAG, help="keep the key in a FIDO token; FILE holds only its handle")
    new.add_argument("--no-passphrase", **FLAG, help="no passphrase: anyone who can read the file can sign")

    trust = add_command(actions, "trust", "add a key to your allowed_signers", "keys.trust")
    trust.add_argument("file", type=Path, metavar="FILE.pub")
    trust.add_argument("--as", dest="name", metavar="NAME", help="the key's owner (default: the file's name)")

    revoke = add_command(actions, "revoke", "add keys to your revocation list (KRL)", "keys.revoke")
    what = "a .pub file (a run's key, a certificate, an authority), a bundle, SHA256:..., or a run's id"
    revoke.add_argument("targets", metavar="WHAT", nargs="+", help=what)
    authority = "the key that certified the run, if WHAT is a run's id"
    revoke.add_argument("--authority", type=Path, metavar="FILE.pub", help=authority)
    revoke.add_argument("--file", type=Path, metavar="KRL", help="default: ~/.config/bench/revoked.krl")
