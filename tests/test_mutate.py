"""The mutation tester: what it changes, what it leaves alone, and which changes it finds unnoticed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.changed_functions import changed_functions
from benchmarks.forked_tests import Reply, Request
from benchmarks.mutate import ChangeName, Copy, in_proportion, known_equivalents, mutate, write_source
from benchmarks.mutated_modules import FIRST_REPORT, MODULES, Held
from benchmarks.mutations import changes, draw

ROOT = Path(__file__).parents[1]


def texts(source: str) -> set[str]:
    return {change.text for change in changes(ast.parse(dedent(source)))}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"[a < b => a >= b]", "[a < b => a <= b]", "[a < b => a > b]"}),
        ("a == b", {"[a == b => a != b]"}),
        ("a is b", {"[a is b => a is not b]"}),
        ("a not in b", {"[a not in b => a in b]"}),
        ("a * b", {"[a * b => a / b]"}),
        ("a + b", {"[a + b => a - b]"}),
        ("a and b", {"[a and b => a or b]", "[a and b => a]", "[a and b => b]"}),
        ("not a", {"[not a => a]"}),
        ("-a", {"[-a => a]"}),
        ("3", {"[3 => 4]", "[3 => 6]"}),
        ("0", {"[0 => 1]"}),
        ("0.5", {"[0.5 => 1.0]"}),
        ("True", {"[True => False]"}),
        ("'rent'", {"['rent' => '']"}),
        ("b'rent'", {"[b'rent' => b'']"}),
        ("a[b:c]", {"a[[b:c => :c]]", "a[[b:c => b:]]"}),
        ("min(a)", {"[min(a) => max(a)]"}),
        ("all(a)", {"[all(a) => any(a)]"}),
        ("f(a, key=b)", {"f(a, [key=b => ])"}),
        (
            "a if b else c",
            {"a if [b => True] else c", "a if [b => False] else c", "a if [b => not b] else c"},
        ),
        ("[a for a in b if c]", {f"[a for a in b if [c => {x}]]" for x in ("True", "False", "not c")}),
    ],
)
def test_an_expression_is_changed_step_by_step(source: str, expected: set[str]) -> None:
    assert texts(f"found = {source}") == {f"found = {text}" for text in expected}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a: b = c", {"if [a => True]:", "if [a => False]:", "if [a => not a]:"}),
        ("while a: b = c", {"while [a => False]:", "while [a => not a]:"}),
        ("raise Refused(2)", {"[raise Refused(2) => pass]"}),
        ("a.b = c", {"[a.b = c => pass]"}),
        ("f(a)", {"[f(a) => pass]"}),
        ("a -= b", {"[a -= b => a += b]"}),
        ("def f(a=1): pass", {"def f(a=[1 => 2]):"}),
        ("def f() -> int | None: return a", {"return [a => None]"}),
        ("def f() -> int: return a", set()),
    ],
)
def test_a_statement_is_changed_or_dropped(source: str, expected: set[str]) -> None:
    assert texts(source) == expected


def test_what_only_readers_and_type_checkers_see_stays() -> None:
    source = '''
        """The docstring of the module."""
        from typing import TYPE_CHECKING, Literal
        __all__ = ["price"]
        if TYPE_CHECKING:
            LIMIT = 3
        Kind = Literal["buy", "rent"]
        Rows = TypeVar("Rows", "Row", bound="Sequence[Row]", covariant=True)

        @dataclass(frozen=True)
        class Offer:
            """The docstring of a class."""

            kind: Literal["buy"]

        def price(days: Literal[1]) -> Literal[2]:
            """The docstring of a function."""
            assert days > 1
            text = f"{days + 1} days"
            other = "a text with blanks"
            words = read(encoding="utf-8")
            return cast("Days", days)
    '''
    assert texts(source) == set()


def test_of_a_refusal_only_the_refusal_itself_is_changed() -> None:
    assert texts("raise Refused('short', 1 + 2)") == {"[raise Refused('short', 1 + 2) => pass]"}


def test_a_mutant_has_one_change_and_names_its_place() -> None:
    source = "class Offer:\n\n    def total(self, days):\n        return self.price * days"
    (mutant,) = draw(source, 10, "0")
    assert mutant.source == source.replace("*", "/")
    assert (mutant.line, mutant.function) == (4, "Offer.total")
    assert mutant.change == "return [self.price * days => self.price / days]"


def test_of_a_long_statement_what_is_near_a_change_is_shown() -> None:
    names = ", ".join(f"name{number}" for number in range(40))
    (text,) = texts(f"found = [{names}, a + b, {names}]")
    assert text.startswith("...") and text.endswith("...")
    assert "name39, [a + b => a - b], name0" in text


def test_the_same_seed_draws_the_same_mutants() -> None:
    source = (ROOT / "bench/report/compare/offers.py").read_text()
    assert draw(source, 5, "1") == draw(source, 5, "1")
    assert draw(source, 5, "1") != draw(source, 5, "2")


def test_more_mutants_begin_with_those_of_fewer() -> None:
    source = (ROOT / "bench/report/compare/offers.py").read_text()
    assert draw(source, 20, "1")[:5] == draw(source, 5, "1")


@pytest.mark.parametrize(
    ("total", "counts"),
    [(10, [6, 3, 1]), (11, [7, 3, 1]), (12, [7, 4, 1]), (20, [12, 6, 2]), (1, [1, 0, 0]), (0, [0, 0, 0])],
)
def test_a_total_is_shared_out_in_proportion_to_possible_changes(total: int, counts: list[int]) -> None:
    sizes = {"offers.py": 60, "prices.py": 30, "owning.py": 10}
    assert in_proportion(total, sizes) == dict(zip(sizes, counts, strict=True))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function, `price * days`, in which a single change is possible."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "money.py").write_text("def total(price, days):\n    return price * days\n")
    return tmp_path


MONEY = {"money.py": Held("money", ("tests/test_money.py",))}
CHANGE = "return [price * days => price / days]"
TRIED = {"money.py": 5, "rent.py": 5}


def expect(project: Path, total: str) -> None:
    test = f"from money import total\n\ndef test_total():\n    assert {total}\n"
    (project / "tests/test_money.py").write_text(test)


def test_a_noticed_change_leaves_no_line_and_no_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(project, "total(2, 3) == 6")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 0
    told = capsys.readouterr().out
    assert CHANGE not in told
    assert told.splitlines()[-1].split() == ["money.py", "money", "1", "1", "0", "0", "100.0%"]


def test_an_unnoticed_change_is_told_with_its_place(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(project, "total(2, 1) == 2")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"money.py:2: {CHANGE}  (total)"
    assert told[-1].split() == ["money.py", "money", "1", "0", "0", "1", "0.0%"]
    assert "price * days" in (project / "money.py").read_text()


def test_an_equivalent_change_is_neither_tried_nor_counted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(project, "total(2, 1) == 2")
    equivalent = {ChangeName("money.py", "total", CHANGE): "days is always 1"}
    assert mutate(project, MONEY, equivalent, TRIED, seed=0) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[2:] == ["1", "0", "1", "0", "100.0%"]


def test_modules_are_tested_without_a_change_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "rent.py").write_text("def rent(days):\n    return 2 * days\n")
    imports = "from money import total\nfrom rent import rent\n"
    test = f"{imports}\ndef test_both():\n    assert total(3, rent(2)) == 12\n"
    (project / "tests/test_money.py").write_text(test)
    requests: list[Request] = []
    run = Copy.run
    monkeypatch.setattr(Copy, "run", lambda copy, asked: requests.append(asked) or run(copy, asked))
    modules = {"money.py": MONEY["money.py"], "rent.py": Held("money", ("tests/test_money.py",))}
    assert mutate(project, modules, {}, TRIED, seed=0) == 0
    assert [asked.traced for asked in requests if asked.limit_seconds is None] == [
        ["money.py", "rent.py"],
        (),
    ]


def test_tests_that_do_not_call_the_function_may_be_left_out(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test that starts a program notices more, and takes longer."""
    program = "import money, sys; sys.exit(money.total(2, 3) != 6)"
    test = f"""\
import subprocess, sys
from money import total

def test_total():
    assert total(2, 1) == 2

def test_program():
    subprocess.run([sys.executable, "-c", {program!r}], check=True)
"""
    (project / "tests/test_money.py").write_text(test)
    assert mutate(project, MONEY, {}, TRIED, seed=0, calling=True) == 1
    assert CHANGE in capsys.readouterr().out
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 0, "what survived some tests is tried with all"
    assert mutate(project, MONEY, {}, TRIED, seed=0, calling=True) == 0, "what was noticed stays so"


def test_tests_that_fail_without_a_change_prove_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(project, "total(2, 3) == 7")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 2
    assert "These tests fail without a change" in capsys.readouterr().err


def test_a_second_run_continues_with_the_results_of_the_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(project, "total(2, 1) == 2")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 1
    monkeypatch.setattr(Copy, "run", lambda *_: pytest.fail("tried again"))
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 1


def test_other_tests_are_tried_anew(project: Path) -> None:
    expect(project, "total(2, 1) == 2")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 1
    expect(project, "total(2, 3) == 6")
    assert mutate(project, MONEY, {}, TRIED, seed=0) == 0


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("def f(a): return a", "def f(a): return a", []),
        ("def f(a): return a * 2", "def f(a): return a / 2", ["f"]),
        ("def f(a): return True", "def f(a): return 1", ["f"]),
        ("class A:\n  def f(self): return 1", "class A:\n  def f(self): return 2", ["A.f"]),
        ("def f(a): return lambda: a + 1", "def f(a): return lambda: a - 1", ["f", "f.<locals>.<lambda>"]),
        ("def f(a): return lambda: a", "def f(a): return None", ["f"]),
        ("def f(a):\n  def g(): return a\n  return g", "def f(a):\n  def g(): return 1\n  return g", None),
        ("LIMIT = 1", "LIMIT = 2", None),
        ("def f(a=1): return a", "def f(a=2): return a", None),
        ("class A:\n  b: int = 1", "class A:\n  b: int = 2", None),
    ],
)
def test_functions_that_differ_are_named_unless_an_import_would_tell(
    before: str, after: str, names: list[str] | None
) -> None:
    found = changed_functions("money.py", before, after)
    assert (None if found is None else [function.name for function in found]) == names


def test_a_changed_function_has_the_line_that_it_had() -> None:
    before, after = "# A comment\n\ndef f(a): return a * 2", "def f(a): return a / 2"
    assert [function.line for function in changed_functions("money.py", before, after) or []] == [3]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Copy]:
    (tmp_path / "tree").mkdir()
    copy = Copy(tmp_path / "tree")
    yield copy
    copy.close()


def test_tests_beyond_their_limit_are_ended_and_have_not_passed(tree: Copy) -> None:
    (tree.folder / "test_forever.py").write_text("def test_forever():\n    while True: pass\n")
    assert not tree.run(Request(["test_forever.py"], limit_seconds=1.0)).passed
    (tree.folder / "test_quick.py").write_text("def test_quick(): pass\n")
    assert tree.run(Request(["test_quick.py"], limit_seconds=None)).passed


def test_a_traced_run_names_the_functions_that_each_test_calls(tree: Copy) -> None:
    (tree.folder / "money.py").write_text("class Rent:\n    def total(self): return [1 for _ in 'a']\n")
    test = "import money\ndef test_total(): money.Rent().total()\ndef test_nothing(): pass\n"
    (tree.folder / "test_money.py").write_text(test)
    reply = tree.run(Request(["test_money.py"], limit_seconds=None, traced=["money.py"]))
    calls = {test.name: test.calls for test in reply.traced}
    assert ["money.py", "Rent.total"] in calls["test_money.py::test_total"]
    assert calls["test_money.py::test_nothing"] == []


def test_named_tests_may_run_alone(tree: Copy) -> None:
    (tree.folder / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    assert tree.run(Request(["test_two.py"], None, ["test_two.py::test_a"], alone=True)).passed
    assert not tree.run(Request(["test_two.py"], None, ["test_two.py::test_a"])).passed


def test_named_tests_run_first(tree: Copy) -> None:
    test = "def test_a(): print('a')\ndef test_b(): print('b')\ndef test_c(): assert False, 'never'\n"
    (tree.folder / "test_order.py").write_text(test)
    reply = tree.run(Request(["test_order.py"], None, ["test_order.py::test_c"]))
    assert not reply.passed and "1 failed" in reply.output and "passed" not in reply.output


TOTAL = "def total(price, days):\n    return price * days\n"
WRONG = TOTAL.replace("*", "+")


def ask_collected(tree: Copy, tests: str, after: str = WRONG, first: str = "test_total") -> Reply:
    """Write tests of TOTAL, collect them, change its code, and run one of them."""
    (tree.folder / "money.py").write_text(TOTAL)
    (tree.folder / "test_money.py").write_text(tests)
    tree.collect(["test_money.py"])
    file = tree.folder / "money.py"
    write_source(file, after)
    changed = [asdict(function) for function in changed_functions(str(file), TOTAL, after) or []]
    names = [f"test_money.py::{first}"]
    return tree.run_collected(Request(["test_money.py"], 1200.0, names, (), changed, processor_seconds=2))


USES_TOTAL = "from money import total\n"


@pytest.mark.parametrize(("total", "passed"), [("total(2, 3) == 6", False), ("total(2, 2) == 4", True)])
def test_a_function_whose_tests_are_collected_gets_its_other_code(
    tree: Copy, total: str, passed: bool
) -> None:
    reply = ask_collected(tree, f"{USES_TOTAL}def test_total(): assert {total}\n")
    assert (reply.tried, reply.passed) == (True, passed)


def test_a_module_that_no_test_has_imported_yet_is_imported_with_the_change(tree: Copy) -> None:
    tests = "def test_total():\n    from money import total\n    assert total(2, 3) == 6\n"
    reply = ask_collected(tree, tests)
    assert (reply.tried, reply.passed) == (True, False)


def test_tests_that_are_collected_are_not_asked_about_a_function_that_an_import_called(tree: Copy) -> None:
    tests = f"{USES_TOTAL}SIX = total(2, 3)\ndef test_total(): assert total(2, 3) == SIX\n"
    assert not ask_collected(tree, tests).tried


def test_tests_that_are_collected_change_nothing_for_each_other(tree: Copy) -> None:
    tests = (
        f"{USES_TOTAL}def test_total(): assert total(2, 3) == 6\ndef test_two(): assert total(2, 2) == 4\n"
    )
    assert not ask_collected(tree, tests).passed
    assert ask_collected(tree, tests, first="test_two").passed
    assert ask_collected(tree, tests, after=TOTAL.replace("price *", "days * price * 1 /")).tried


def test_a_collected_test_beyond_its_processor_time_is_ended_and_has_not_passed(tree: Copy) -> None:
    tests = f"{USES_TOTAL}def test_total():\n    while total(2, 3) != 6: pass\n"
    reply = ask_collected(tree, tests)
    assert (reply.tried, reply.passed) == (True, False)


def test_every_equivalent_change_exists_and_has_a_reason() -> None:
    equivalents = known_equivalents()
    possible = {
        module: {(c.around.function, c.text) for c in changes(ast.parse((ROOT / module).read_text()))}
        for module in {place.module for place in equivalents}
    }
    for place, reason in equivalents.items():
        assert (place.function, place.change) in possible[place.module], place
        assert len(reason.split()) > 3, place


def test_every_module_of_the_table_and_its_tests_exist() -> None:
    named = {*MODULES, *(test for held in MODULES.values() for test in held.tests)}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_modules_of_the_first_report_are_in_the_table() -> None:
    assert [name for name in FIRST_REPORT if name not in MODULES] == []
