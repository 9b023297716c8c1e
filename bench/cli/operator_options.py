"""Options of the operator's commands: `bench challenge`, `certify`, `receive` and `keys`."""

from __future__ import annotations

from pathlib import Path

from bench.cli.arguments import Command, Commands, add_command, duration


def add_operator(commands: Commands) -> None:
    challenge = add_command(
        commands,
        "challenge",
        "request a run from a node that need not be trusted",
        Command("challenge", "challenge", "ChallengeArguments"),
    )
    challenge.add_argument("manifest", type=Path, metavar="MANIFEST")
    challenge.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: challenge-RUN.json")
    challenge.add_argument(
        "--run", dest="run_id", metavar="ID", help="challenge again for this run, whose node was lost"
    )

    certify = add_command(
        commands,
        "certify",
        "certify a run's key with your SSH key",
        Command("challenge", "certify", "CertifyArguments"),
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

    receive = add_command(
        commands,
        "receive",
        "verify a bundle that came back, and countersign it",
        Command("challenge", "receive", "ReceiveArguments"),
    )
    receive.add_argument("bundle", type=Path, metavar="BUNDLE")
    receive.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: replace BUNDLE")

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

    new = add_command(actions, "new", "make a key with ssh-keygen", Command("keys", "new", "NewKeyArguments"))
    new.add_argument("file", type=Path, metavar="FILE", nargs="?", help="default: ~/.config/bench/id_ed25519")
    new.add_argument("--token", action="store_true", help="keep it in a FIDO token; FILE is only its handle")
    new.add_argument("--no-passphrase", action="store_true", help="anyone who can read the file can sign")

    show = add_command(
        actions, "show", "show your key, and how others trust it", Command("keys", "show", "ShowKeyArguments")
    )
    show.add_argument(
        "file", type=Path, metavar="FILE", nargs="?", help="default: ~/.config/bench/id_ed25519"
    )

    trust = add_command(
        actions, "trust", "add a key to your allowed_signers", Command("keys", "trust", "TrustArguments")
    )
    trust.add_argument("file", type=Path, metavar="FILE.pub")
    trust.add_argument("--as", dest="name", metavar="NAME", help="its owner (default: the file's name)")

    revoke = add_command(
        actions, "revoke", "add to your revocation list (KRL)", Command("keys", "revoke", "RevokeArguments")
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
