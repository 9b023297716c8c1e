"""Confine this process and its children by Linux's Landlock, through the kernel's own calls.

https://docs.kernel.org/userspace-api/landlock.html. Landlock needs no rights and cannot be undone. A kernel
without Landlock (before 5.13, or where it is switched off) leaves the process unconfined.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on every processor
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
# Bits 6 and 11 are of making devices, which no run does.
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1  # the rights of version 1
_LATER = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))  # and from which version on there are others
_OF_FILES = _EXECUTE | WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # the others are of folders
LIST = _READ_DIR  # of the names in folders
READ = _EXECUTE | _READ_FILE | _READ_DIR
REWRITE = READ | WRITE_FILE | _TRUNCATE  # of files that exist
DEVICES = READ | WRITE_FILE | _TRUNCATE | _IOCTL_DEV
WRITE = (
    READ | WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK
    | _MAKE_FIFO | _MAKE_SYM
)  # fmt: skip
_SCOPES = 3  # from version 6 on: abstract sockets and signals reach only processes that are confined alike


def version() -> int:
    """Return the version of Landlock that the kernel offers; 0 if there is none."""
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def confine(rules: Iterable[tuple[Path, int]]) -> int:
    """Restrict access to the file system to these rules, each for a path and everything below it.

    Return the version of Landlock that is in force; 0 if the kernel offers none. Needs no_new_privs.
    """
    offered = version()
    if not offered:
        return 0
    attributes = ruleset_attributes(offered)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return 0
    for path, rights in rules:
        _allow(ruleset, path, rights & handled(offered))
    done = _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return offered if done == 0 else 0


def handled(offered: int) -> int:
    """Return the rights that a kernel with this version of Landlock can restrict."""
    return _FIRST | sum(right for since, right in _LATER if offered >= since)


def ruleset_attributes(offered: int) -> bytes:
    """Return what a kernel with this version of Landlock restricts, without the fields that it does not know.

    The fields are rights in the file system, ports of the network, of which none is restricted, and scopes.
    """
    fields = struct.pack("QQQ", handled(offered), 0, _SCOPES)
    return fields[: 24 if offered >= 6 else 16 if offered >= 4 else 8]


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # a path that does not exist needs no rule
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call; return its result, or -1."""
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), *words))
