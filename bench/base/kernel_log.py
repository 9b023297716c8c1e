"""Read the kernel's log since boot from /dev/kmsg, which needs root where kernel.dmesg_restrict=1."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

LOG = "/dev/kmsg"


def kernel_messages(words: Sequence[bytes]) -> Iterator[str]:
    """Yield the messages that have one of the words, the oldest first.

    OSError if the log cannot be read; EOFError if the file ends, which the kernel's log never does.
    `why_closed` describes either error.
    """
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    with os.fdopen(os.open(LOG, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as log:
        while True:
            with suppress(BrokenPipeError):  # the oldest records were overwritten meanwhile
                record = log.read(8192)
                if record is None:  # there is no further record yet
                    return
                if not record:
                    raise EOFError("not the kernel's log")
                if any(word in record for word in words):
                    yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]


def why_closed(error: OSError | EOFError) -> str:
    """Describe why `kernel_messages` could not read the log."""
    return f"{LOG}: {getattr(error, 'strerror', None) or error}"
