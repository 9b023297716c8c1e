"""Let pushes take turns where they decide what stays in a node's folder, which nodes may share as one home.

The lock is a folder: making one is atomic on network file systems too.
"""

from __future__ import annotations

import shlex

_LOCK = ".busy"
GIVEN_UP = 75  # exit code if the lock could not be had
_STEPS = 300  # of a tenth of a second each, after which a push gives up


def locked(place: str, script: str) -> str:
    """Return shell commands that run a quick script while no other push does, and have its exit code.

    A lock that is older than a minute is of a push that was killed, and is removed.
    """
    folder, lock = shlex.quote(place), shlex.quote(f"{place}/{_LOCK}")
    # Where the lock can be neither made nor seen, its folder vanished just now, or it cannot be written to.
    return (
        f"n=0; until mkdir -p {folder} 2>/dev/null && mkdir {lock} 2>/dev/null; do "
        f"find {lock} -maxdepth 0 -mmin +1 -exec rmdir {{}} + 2>/dev/null; "
        f"n=$((n + 1)); [ -d {lock} ] || n=$((n + {_STEPS // 20})); "
        f"if [ $n -ge {_STEPS} ]; then "
        f"if [ -d {lock} ]; then echo 'another push holds '{lock} >&2; else mkdir -p {lock}; fi; "
        f"exit {GIVEN_UP}; fi; "
        f"sleep 0.1; done; ( {script} ); code=$?; rmdir {lock}; ( exit $code )"
    )
