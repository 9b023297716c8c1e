"""A lock for pushes that decide what stays in a node's folder, which several nodes may share as their home.

The lock is a folder, because making one is atomic on network file systems too. Its holder has a folder inside
of it. To take the lock from a push that was killed, a push removes only this inner folder, so that several
pushes which find an old lock at once do not take it from each other.
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
    old = f"find {lock} -mindepth 1 -mmin +1 -exec rmdir {{}} \\; -print | grep -q . && rmdir {lock}"
    empty = f"find {lock} -maxdepth 0 -empty -mmin +1 -exec rmdir {{}} \\;"
    # Another push may remove a lock as an empty one before its maker is in it: only the one inside holds it.
    taken = f'mkdir {lock} && own=$(mktemp -d {lock}/XXXXXXXX) && [ "$(ls {lock})" = "${{own##*/}}" ]'
    # If the lock can be neither made nor seen, its folder was just removed or cannot be written to.
    held = f"[ ! -d {lock} ] || {{ echo 'another push holds '{lock} >&2; exit {GIVEN_UP}; }}"
    return (
        f"n=0; own=; until mkdir -p {folder} 2>/dev/null && {{ {taken}; }} 2>/dev/null; do "
        f'[ -z "$own" ] || {{ rmdir "$own"; rmdir {lock}; }} 2>/dev/null; own=; '
        f"{{ {old}; {empty}; }} 2>/dev/null; "
        f"n=$((n + 1)); [ -d {lock} ] || n=$((n + {_STEPS // 20})); "
        f"if [ $n -ge {_STEPS} ]; then {held}; mkdir -p {lock} && rmdir {lock}; exit {GIVEN_UP}; fi; "
        f'sleep 0.1; done; ( {script} ); code=$?; rmdir "$own" 2>/dev/null && rmdir {lock} 2>/dev/null; '
        "( exit $code )"
    )
