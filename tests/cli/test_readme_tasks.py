"""The three tasks of README take at most five commands each; tests/e2e/test_readme_tasks.py runs them."""

from __future__ import annotations

import shlex

import pytest

from bench.cli.main import parser
from tests.readme_tasks import ReadmeTask, tasks


def test_there_are_three_tasks_of_at_most_five_commands() -> None:
    assert [task.question for task in tasks()] == [
        "How long does my model take here?",
        "Is this node good?",
        "What shall I rent for a deadline?",
    ]
    assert all(1 < len(task.commands) <= 5 for task in tasks())


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.question)
def test_every_command_is_one_of_pip_or_of_bench(task: ReadmeTask) -> None:
    installs, *commands = (shlex.split(line) for line in task.commands)
    assert installs[:2] == ["pip", "install"]
    for program, *words in commands:
        assert program == "bench"
        assert parser().parse_args(words).call is not None
