"""The options of the calls that all front doors have, defined once.

The front doors are `REPLEnvironment`, `LocalREPLEnv`, `AsyncLocalREPLEnv`, `REPLEnv` and
`SyncREPLEnv`. Each writes the options out in its signatures; a test compares the signatures with
these classes. The options of constructors are in `repl_env.env.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ForwardRef, Self

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from repl_env.episode.contexts import Given
    from repl_env.episode.initial_files import Files
    from repl_env.llm.spec import LLM
    from repl_sandbox.tables import Settable


# Types as schemas of answers, through pydantic.
#
# Not in `answers.py`, because the client of a server needs this module and no session code.


def type_adapter(schema: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; TypeError for anything else, above all text.

    pydantic evaluates text as the name of a type; a schema may come from a stranger.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if isinstance(schema, (str, ForwardRef)):
        kind = type(schema).__name__
        raise TypeError(f"answer_schema must be a JSON schema as a dict, or a type, not {kind}")
    try:
        return TypeAdapter(schema)
    except PydanticUserError as error:
        # The first line suffices: the rest of pydantic's message explains custom types.
        message = str(error).partition("\n")[0]
        raise TypeError(f"answer_schema must be a JSON schema or a type: {message}") from error


def options_in(kind: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the dataclass `kind` among `arguments`, such as a door's `locals()`."""
    return {each.name: arguments[each.name] for each in fields(kind) if each.name in arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOptions:
    """The options of a reset, as in `LocalREPLEnv.reset`. None: the default of the environment.

    `context` may also be a resolved `contexts.Context`, from callers inside the package.
    """

    context: Given | None = field(default=None, repr=False)
    contexts: Mapping[str, Given] | None = field(default=None, repr=False)
    files: Files | None = field(default=None, repr=False)
    task_prompt: str | None = None
    max_iterations: int | None = None
    seed: int | None = None
    episode_id: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    llm_model: str | None = None
    llm: LLM | None = None
    expected_answer: Any = field(default=None, repr=False)
    answer_schema: Any = None
    rlm_max_depth: int | None = None
    rlm_max_iterations: int | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the options among `arguments`."""
        return cls(**options_in(cls, arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUpOptions:
    """The options of a follow-up, as in `LocalREPLEnv.follow_up`."""

    task_prompt: str
    max_iterations: int | None = None
    expected_answer: Any = field(default=None, repr=False)
    answer_schema: Any = None
    variables: Mapping[str, Settable] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the options among `arguments`."""
        return cls(**options_in(cls, arguments))


RESET_NAMES = frozenset(each.name for each in fields(ResetOptions))
