"""Write into a run's `out` folder without following links that the run's own code made there. Pure.

The shell of a push has the rights of the login, often root's. Code in a container, or confined by Landlock,
may write only to `out`, but it can make a link there to any file of the node.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

_GIVEN = ".given"  # beside out/, where the run's own code cannot write


def put(run_folder: str, path: str, size: int) -> str:
    """Return shell commands that write `size` bytes of standard input to a file below a run's folder.

    The bytes go to a file beside out/, which is renamed: that replaces a link, and follows none. The commands
    fail if fewer bytes come, or if a folder of `path` is a link. Folders that are not there are made.
    """
    *folders, name = PurePosixPath(path).parts
    # A broken connection ends the input as its end does: only the size shows that bytes are missing.
    commands = [f"cd {shlex.quote(run_folder)}", "top=$(pwd -P)", f"head -c {size} >{_GIVEN}",
                f"[ $(wc -c <{_GIVEN}) = {size} ]"]  # fmt: skip
    for number, folder in enumerate(folders, 1):
        here = shlex.quote("/".join(folders[:number]))
        # Only the shell's own folder counts: others may replace the folder that it enters at any time.
        commands.append(
            f"{{ mkdir {shlex.quote(folder)} 2>/dev/null; cd -P {shlex.quote(f'./{folder}')}; }} && "
            f'{{ [ "$(pwd -P)" = "$top"/{here} ] || {{ echo {here} is a link >&2; false; }}; }}'
        )
    return " && ".join([*commands, f'mv -T "$top/{_GIVEN}" ./{shlex.quote(name)}'])
