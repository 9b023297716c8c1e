"""Options of the operator's commands: `bench challenge`, `certify`, `receive` and `keys`."""

from __future__ import annotations

from pathlib import Path

from bench.cli.arguments import Command, Commands, duration


def add_operator(commands: Commands) -> None:
    challenge = commands.add_parser(
        "challenge",
        help="request a run from a node that need not be trusted",
        description="Write a challenge for a node: one run of one manifest, with a nonce.",
    )
    challenge.add_argument("manifest", type=Path, metavar="MANIFEST")
    challenge.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: challenge-RUN.json")
    challenge.add_argument(
        "--run", dest="run_id", metavar="ID", help="challenge again for this run, whose node was lost"
    )
    challenge.set_defaults(call=Command("challenge", "challenge", "ChallengeArguments"))

    certify = commands.add_parser(
        "certify",
        help="certify a run's key with your SSH key",
        description="Certify with your SSH key that a run's own key may sign that run's bundle.",
    )
    certify.add_argument("request", type=Path, metavar="REQUEST", help="request.json from the run's folder")
    certify.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="default: run-cert.pub beside REQUEST"
    )
    certify.add_argument(
        "--valid",
        dest="valid_seconds",
        type=duration,
        default=7200.0,
        metavar="TIME",
        help="how long from now, 7d at most (default: 2h)",
    )
    certify.set_defaults(call=Command("challenge", "certify", "CertifyArguments"))

    receive = commands.add_parser(
        "receive",
        help="verify a bundle that came back, and countersign it",
        description="Verify a bundle that answers a challenge, and countersign it; once for each run.",
    )
    receive.add_argument("bundle", type=Path, metavar="BUNDLE")
    receive.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: replace BUNDLE")
    receive.set_defaults(call=Command("challenge", "receive", "ReceiveArguments"))

    for command in (certify, receive):
        command.add_argument(
            "--key",
            type=Path,
            metavar="FILE",
            help="your SSH key, or the .pub of a key in an agent or a token (default: bench's own)",
        )
    for command in (challenge, certify, receive):
        command.add_argument(
            "--ledger", type=Path, metavar="FILE", help="default: ~/.local/state/bench/ledger.jsonl"
        )


def add_keys(commands: Commands) -> None:
    keys = commands.add_parser(
        "keys",
        help="manage your key, trusted keys and revocations",
        description="Manage your key, the keys that you trust, and the keys that are revoked.",
    )
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION", prog="bench keys")

    new = actions.add_parser(
        "new", help="make a key with ssh-keygen", description="Make an SSH key with ssh-keygen."
    )
    new.add_argument("file", type=Path, metavar="FILE", nargs="?", help="default: ~/.config/bench/id_ed25519")
    new.add_argument("--token", action="store_true", help="keep it in a FIDO token; FILE is only its handle")
    new.add_argument("--no-passphrase", action="store_true", help="anyone who can read the file can sign")
    new.set_defaults(call=Command("keys", "new", "NewKeyArguments"))

    show = actions.add_parser(
        "show",
        help="show your key, and how others trust it",
        description="Show your key, and the lines with which others trust it.",
    )
    show.add_argument(
        "file", type=Path, metavar="FILE", nargs="?", help="default: ~/.config/bench/id_ed25519"
    )
    show.set_defaults(call=Command("keys", "show", "ShowKeyArguments"))

    trust = actions.add_parser(
        "trust",
        help="add a key to your allowed_signers",
        description="Add a public key to your allowed_signers: bundles that it signed are trusted.",
    )
    trust.add_argument("file", type=Path, metavar="FILE.pub")
    trust.add_argument("--as", dest="name", metavar="NAME", help="its owner (default: the file's name)")
    trust.set_defaults(call=Command("keys", "trust", "TrustArguments"))

    revoke = actions.add_parser(
        "revoke",
        help="add to your revocation list (KRL)",
        description="Add keys or runs to your revocation list (KRL): their bundles are refused.",
    )
    revoke.add_argument(
        "targets",
        metavar="WHAT",
        nargs="+",
        help="a .pub file (a run's key, a certificate, an authority), a bundle, SHA256:..., or a run's id",
    )
    revoke.add_argument(
        "--authority", type=Path, metavar="FILE.pub", help="the key that certified the run with that id"
    )
    revoke.add_argument("--file", type=Path, metavar="KRL", help="default: ~/.config/bench/revoked.krl")
    revoke.set_defaults(call=Command("keys", "revoke", "RevokeArguments"))
