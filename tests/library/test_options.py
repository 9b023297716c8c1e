"""The functions have the options of the commands, with the same names, defaults and meanings."""

from __future__ import annotations

import inspect
from argparse import Action
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.base.errors import BenchError
from bench.cli.main import parser

# Options that say how a result is shown, or that run the command elsewhere: a function returns values, and
# several nodes and containers are for the commands.
COMMANDS_ALONE = {
    "plan": {"list_models", "all", "json"},
    "run": {
        "columns", "json", "nodes", "node", "meet", "meet_secret", "meet_in_public", "engine", "image",
    },
    "verify": {"json"},
    "compare": {"settings", "columns", "format", "json", "html", "plots", "png"},
    "predict": {"explain", "format", "json", "html", "plots", "png", "measured"},
}  # fmt: skip
FUNCTIONS_ALONE = {"run": {"say"}, "compare": {"telemetry"}}


def options_of(command: str) -> dict[str, Action]:
    """Return the arguments of a command, by the names that a function would give them."""
    found: dict[str, Action] = {}
    for action in parser(command).commands[command]._actions:
        longest = max(action.option_strings, key=len, default=action.dest)
        found[longest.removeprefix("--").replace("-", "_")] = action
    del found["help"]
    return found


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(bench, name)).parameters)


def plain(default: Any) -> Any:
    """Return a default as a function would have it."""
    if default is inspect.Parameter.empty:
        return None
    return str(default) if isinstance(default, Path) else tuple(default) if default == [] else default


@pytest.mark.parametrize("name", COMMANDS_ALONE)
def test_a_functions_keywords_are_the_commands_options(name: str) -> None:
    options, parameters = options_of(name), parameters_of(name)
    assert COMMANDS_ALONE[name] <= options.keys()
    wanted = (options.keys() - COMMANDS_ALONE[name]) | FUNCTIONS_ALONE.get(name, set())
    assert parameters.keys() == wanted


@pytest.mark.parametrize("name", COMMANDS_ALONE)
def test_a_keywords_default_is_the_options(name: str) -> None:
    options = options_of(name)
    for keyword, parameter in parameters_of(name).items():
        if keyword in options:
            assert plain(parameter.default) == plain(options[keyword].default), keyword


@pytest.mark.parametrize("name", COMMANDS_ALONE)
def test_only_the_first_argument_has_a_place(name: str) -> None:
    first, *others = parameters_of(name).values()
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(other.kind is inspect.Parameter.KEYWORD_ONLY for other in others)


@pytest.mark.parametrize("name", COMMANDS_ALONE)
def test_every_keyword_is_described(name: str) -> None:
    described = inspect.getdoc(getattr(bench, name)) or ""
    for keyword in parameters_of(name):
        assert f"`{keyword}`" in described or keyword in ("manifest", "bundles"), keyword


ROOT = Path(__file__).parents[2]
ONE, HOUR = str(ROOT / "results/hour-h200/decided.tar"), str(ROOT / "manifests/hour.json")


@pytest.mark.parametrize(
    ("name", "first", "keyword", "texts"),
    [
        ("compare", ONE, "deadline", ("14", "14d", "36h", "2w", "soon", "0", "2020-01-01")),
        ("compare", ONE, "budget_usd", ("20,000", "-1", "much")),
        ("compare", ONE, "utilisation", ("85", "85%", "120", "0")),
        ("predict", HOUR, "interrupted_every", ("12h", "3", "0s")),
    ],
)
def test_a_text_means_what_it_means_on_the_command_line(
    name: str, first: str, keyword: str, texts: tuple[str, ...]
) -> None:
    """The function accepts the texts that the command's parser accepts, and refuses others in its words."""
    option = f"--{keyword.replace('_', '-')}"
    for text in texts:
        try:
            read = vars(parser(name).parse_args([name, first, f"{option}={text}"]))
        except BenchError as error:
            with pytest.raises(bench.BadInput) as refused:
                getattr(bench, name)(first, **{keyword: text})
            assert error.message == f"argument {option}: {refused.value.message.removeprefix(f'{keyword}: ')}"
        else:
            value = read[options_of(name)[keyword].dest]
            asked: dict[str, Any] = {"gpu": "h200"} if name == "predict" else {}
            by_text = getattr(bench, name)(first, **{keyword: text}, **asked)
            assert by_text.to_json() == getattr(bench, name)(first, **{keyword: value}, **asked).to_json()
