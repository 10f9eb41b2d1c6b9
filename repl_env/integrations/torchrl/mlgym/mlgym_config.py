"""Settings of an agent: templates, commands, environment variables, the state command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import at_least
from repl_env.integrations.torchrl.mlgym import mlgym_templates
from repl_env.integrations.torchrl.mlgym.command_files import documented, read_command_files
from repl_env.tasks import Task, load

_STATE = Path(__file__).with_name("session_code") / "state_command.py"
_COMMANDS = """\
- validate(): evaluates the submission's files as they are, and returns the score.
- submit(): hands in the submission's files, and ends the episode."""
_STEP_FIELDS = frozenset({"observation", "current_step", "remaining_steps"})


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, slots=True)
class StateCommand:
    """The command that tells the state of an episode: `code` defines it, `name` runs it.

    It prints a JSON object; `variables` are its keys, which templates may have as fields.
    """

    name: str = "task_state()"
    code: str = field(default_factory=lambda: _STATE.read_text(encoding="utf-8"), repr=False)
    variables: tuple[str, ...] = ("working_dir", "files")


@dataclass(frozen=True, slots=True)
class ToolsHandler:
    """The documentation of the commands, and the environment variables."""

    command_docs: str
    env_variables: dict[str, str]


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The templates of the prompts and what the session has, under MLGym's names.

    Fields of templates are `{name}`; `{{` and `}}` stand for braces. Every template has those of
    the task's arguments, of `command_docs` and of the environment variables; all but the system
    template also `observation`, `current_step`, `remaining_steps` and the state's variables.

    Attributes:
        strategy_template: follows the task template; None: nothing does.
        command_files: Python files whose functions the session has; scripts begin with `#!`.
        env_variables: environment variables of the session.
        state_command: None: messages show no state, and no cell runs for it.
        language: the name of the blocks that hold code.

    Raises:
        ValueError: a command file is none that a session can have.
    """

    system_template: str = mlgym_templates.SYSTEM
    task_template: str = mlgym_templates.TASK
    strategy_template: str | None = None
    next_step_template: str = mlgym_templates.NEXT_STEP
    next_step_no_output_template: str = mlgym_templates.NO_OUTPUT
    wrong_format_template: str = mlgym_templates.WRONG_FORMAT
    command_files: tuple[str | os.PathLike[str], ...] = ()
    env_variables: Mapping[str, str] = field(default_factory=dict)
    state_command: StateCommand | None = field(default_factory=StateCommand)
    language: str = "python"

    @cached_property
    def commands(self) -> list[dict[str, str]]:
        """The command files, read once."""
        return read_command_files(self.command_files)

    @cached_property
    def tools_handler(self) -> ToolsHandler:
        """The documentation of all commands, and the environment variables as text."""
        docs = "\n".join(filter(None, (_COMMANDS, documented(self.commands))))
        return ToolsHandler(docs, {name: str(value) for name, value in self.env_variables.items()})

    def check(self, task_args: Mapping[str, Any]) -> None:
        """ValueError that names the first field of a template which nothing gives a value."""
        always = {*task_args, "command_docs", *self.env_variables}
        state = self.state_command.variables if self.state_command else ()
        for name in fields(self):
            template = getattr(self, name.name)
            if not name.name.endswith("_template") or template is None:
                continue
            known = set(always) if name.name == "system_template" else {*always, *state}
            known |= set() if name.name == "system_template" else _STEP_FIELDS
            known |= {"language"} if name.name == "wrong_format_template" else set()
            if unknown := sorted(mlgym_templates.fields_of(template) - known):
                known_names = ", ".join(sorted(known))
                raise ValueError(
                    f"{name.name}: nothing is called {{{unknown[0]}}}; there are {known_names}"
                )


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, slots=True)
class ModelArguments:
    """Which model acts; a name for records only."""

    model_name: str = ""


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, slots=True)
class AgentArguments:
    """The agent's side: its model's name and its configuration."""

    model: ModelArguments = field(default_factory=ModelArguments)
    config: AgentConfig = field(default_factory=AgentConfig)


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, slots=True)
class TaskArguments:
    """Fields of templates about a task; `description` is its whole prompt."""

    id: str
    name: str
    description: str
    metric: str
    direction: str
    baseline: float
    submission: str
    validations: int
    split: str = "train"
    difficulty: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, task: Task) -> TaskArguments:
        """Those of `task`."""
        return cls(
            id=task.name,
            name=task.name,
            description=task.prompt,
            metric=task.metric,
            direction=task.direction,
            baseline=task.baseline,
            submission=", ".join(task.submission),
            validations=task.limits.validations,
            split=task.split,
            difficulty=task.difficulty,
            group=task.group,
        )


@set_module("repl_env.integrations.torchrl.mlgym")
@dataclass(frozen=True, slots=True)
class EnvironmentArguments:
    """The environment's side: the task, and the steps that an episode of it has."""

    task: Task
    max_steps: int
    task_args: TaskArguments


@set_module("repl_env.integrations.torchrl")
def get_args(
    task: str | os.PathLike[str] | Task = "prisoners-dilemma",
    *,
    max_steps: int | None = None,
    config: AgentConfig | None = None,
) -> tuple[EnvironmentArguments, AgentArguments]:
    """The arguments of the environment and of the agent for a task.

    Args:
        task: the name of a shipped task, the directory of one, or what `repl_env.tasks.load` gave.
        max_steps: steps of an episode; None: as the task has it.
        config: templates and commands; None: the default ones.

    Raises:
        TaskError: there is no such task, or it is wrong.
        ValueError: a template has a field that nothing gives a value; `max_steps` is below 1.
    """
    found = task if isinstance(task, Task) else load(task)
    arguments = TaskArguments.of(found)
    agent = AgentArguments(config=config or AgentConfig())
    agent.config.check(asdict(arguments))
    steps = found.limits.steps if max_steps is None else at_least(max_steps, 1, "max_steps")
    return EnvironmentArguments(found, steps, arguments), agent


def as_fields(arguments: Any) -> dict[str, Any]:
    """The values of a dataclass or of a mapping, by name."""
    if is_dataclass(arguments) and not isinstance(arguments, type):
        return asdict(arguments)
    return dict(arguments)
