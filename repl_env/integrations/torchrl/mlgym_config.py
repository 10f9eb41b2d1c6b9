"""The configuration of MLGym's agents, tasks and commands, and its message templates."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import at_least
from repl_env.integrations import session_code
from repl_env.tasks import Task, load

# The texts of the prompts, and how a template is filled in.

SYSTEM = """\
You solve a task in a persistent Python session: variables, functions, imports and files stay from \
one reply to the next. Reply with your reasoning and exactly one block of code:

```python
print("hello")
```

The next message shows the output of the block. A reply without a block runs nothing and uses up a \
step.

Functions that the session has:
{command_docs}"""

TASK = """\
Task: {name}

{description}

{remaining_steps} steps remain. Working directory: {working_dir}; it has: {files}."""

NEXT_STEP = """\
{observation}

Step {current_step} is over; {remaining_steps} remain."""

NO_OUTPUT = """\
The code ran and printed nothing.

Step {current_step} is over; {remaining_steps} remain."""

WRONG_FORMAT = (
    "FormatError: no code ran, because the reply has no block of code. Reply with exactly one "
    "block that begins with ```{language} and ends with ```."
)

# A field is a name in braces; doubled braces stand for one. Any other brace is text.
_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """`template` with the values of its fields, as `str.format` has it for plain names.

    Values are text and are never looked into, and a field that no value is for stays as it is.
    """

    def of(match: re.Match[str]) -> str:
        if (name := match[1]) is None:
            return match[0][0]
        return str(values[name]) if name in values else match[0]

    return _FIELD.sub(of, template)


def fields_of(template: str) -> set[str]:
    """The names of the fields of `template`."""
    return {match[1] for match in _FIELD.finditer(template)} - {None}


# Command files: functions and scripts that an agent has besides its own code.


def read_command_files(paths: Iterable[str | os.PathLike[str]]) -> list[dict[str, str]]:
    """The files as MLGym's `add_commands` takes them: each with `name`, `type`, `contents`.

    A file that begins with `#!` is a "script"; a `.sh` or `.py` file is a "source_file", whose
    functions are commands; one whose name begins with `_` is a "utility".

    Raises:
        ValueError: the file is none of these.
    """
    return [_read(Path(path)) for path in paths]


def _read(path: Path) -> dict[str, str]:
    contents = path.read_text(encoding="utf-8")
    name = path.name
    if contents.lstrip().startswith("#!"):
        return {"contents": contents, "name": name.rsplit(".", 1)[0], "type": "script"}
    if name.startswith("_"):
        return {"contents": contents, "name": name, "type": "utility"}
    if path.suffix in (".sh", ".py"):
        return {"contents": contents, "name": name, "type": "source_file"}
    raise ValueError(
        f"command file {path}: it neither begins with '#!', which makes it a script, nor is it a "
        ".py or .sh file, nor does its name begin with '_', which makes it a utility"
    )


def documented(files: Iterable[dict[str, str]]) -> str:
    """The signature and the docstring of each public function of the Python files."""
    docs = []
    for file in files:
        if file["type"] == "source_file" and file["name"].endswith(".py"):
            docs += [_documented(node) for node in _functions(file)]
    return "\n".join(docs)


def _functions(file: dict[str, str]) -> list[ast.FunctionDef]:
    try:
        tree = ast.parse(file["contents"], file["name"])
    except SyntaxError as error:
        raise ValueError(f"command file {file['name']}: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if not node.name.startswith("_")]


def _documented(node: ast.FunctionDef) -> str:
    doc = (ast.get_docstring(node) or "").replace("\n", "\n  ")
    return f"- {node.name}({ast.unparse(node.args)})" + (f": {doc}" if doc else "")


# Settings of an agent: templates, commands, environment variables, the state command.

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
    code: str = field(default_factory=lambda: session_code("state_command.py"), repr=False)
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

    system_template: str = SYSTEM
    task_template: str = TASK
    strategy_template: str | None = None
    next_step_template: str = NEXT_STEP
    next_step_no_output_template: str = NO_OUTPUT
    wrong_format_template: str = WRONG_FORMAT
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
            if unknown := sorted(fields_of(template) - known):
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
