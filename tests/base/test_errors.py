"""Errors cross processes: many bundles are verified in several processes, which send back their errors."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import bench
from bench.base.errors import BadInput, BenchError, Mistake, Untrusted, raised


def _subclasses(kind: type[BenchError]) -> Iterator[type[BenchError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


def every_kind() -> list[type[BenchError]]:
    """Import all of bench that can be imported here, and return BenchError with every class below it."""
    for module in pkgutil.walk_packages(bench.__path__, "bench."):
        if module.name.rpartition(".")[2] != "__main__" and ".templates" not in module.name:
            try:
                importlib.import_module(module.name)
            except ImportError:  # a package that this environment lacks
                continue
    return list(dict.fromkeys(_subclasses(BenchError)))


def made(kind: type[BenchError]) -> BenchError:
    """Make an error of a class without its constructor, whose arguments differ from class to class."""
    error = kind.__new__(kind, "the message")
    BenchError.__init__(error, "the message", where="here\x1b", advice="try again")
    if isinstance(error, BadInput):
        error.mistakes = (Mistake("/a", "found", "allowed"),)
    return error


def test_every_error_survives_the_way_to_another_process() -> None:
    kinds = every_kind()
    assert len(kinds) > 6
    for kind in kinds:
        error = made(kind)
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert vars(back) == vars(error)
        assert (str(back), back.args, back.to_json()) == (str(error), error.args, error.to_json())


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_untrusted_signer_is_told_in_the_same_words_after_that(protocol: int) -> None:
    error = Untrusted("keys", "signed", "SHA256:abc", "is not listed")
    error.where = "a.tar"
    back = pickle.loads(pickle.dumps(error, protocol))
    assert isinstance(back, Untrusted)
    assert str(back) == (
        "a.tar: not trusted: signed by the key SHA256:abc, which is not listed (trusted keys: keys)\n"
        "  once you have compared this fingerprint with the signer's own: bench keys trust FILE.pub"
    )
    assert back.doubt == error.doubt


def test_a_path_with_a_line_break_stays_on_its_line() -> None:
    """A second line could pass for the verdict of another bundle."""
    for kind in every_kind():
        error = made(kind)
        error.where = "a\nvalid      17 files.tar"
        assert str(error).startswith(r"a\nvalid      17 files.tar: the message")


def test_an_exception_of_other_code_is_named_on_one_line_and_cut() -> None:
    assert raised(KeyError("width")) == "KeyError: 'width'"
    assert raised(ValueError("two\n  lines")) == "ValueError: two lines"
    assert len(raised(RuntimeError("x" * 1000))) == 300
