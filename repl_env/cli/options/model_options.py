"""The model of a command, from options and from the environment of the process.

This is the one place that reads OPENAI_BASE_URL, OPENAI_API_KEY and HF_TOKEN. A key is never an
option: the arguments of a process can be read by every user of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from repl_env.llm.model_spec import OPENAI

from ..exit_status import ExitStatus
from ..option_values.function_references import named
from .help_groups import MODEL

if TYPE_CHECKING:
    from repl_env.llm.base import ChatModel, ModelRequest
    from repl_env.llm.model_spec import LLM

SCRIPT = "script:"

_MODEL_HELP = (
    "The model, as its endpoint names it; or script:FILE.py:FUNCTION, whose function(request) "
    "returns the reply as text."
)
_URL_HELP = "An OpenAI-compatible endpoint."
_KEY_HELP = "The environment variable that holds the key."

ModelName: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="MODEL", help=_MODEL_HELP, rich_help_panel=MODEL)
]
BaseURL: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help=_URL_HELP,
        envvar="OPENAI_BASE_URL",
        show_default="$OPENAI_BASE_URL",
        rich_help_panel=MODEL,
    ),
]
KeyVariable: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help=_KEY_HELP,
        show_default="OPENAI_API_KEY; HF_TOKEN for Hugging Face",
        rich_help_panel=MODEL,
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The values of the model options. `api_key_env` is the name of a variable, not a key."""

    model: ModelName
    base_url: BaseURL = None
    api_key_env: KeyVariable = None


def model_from(
    options: ModelOptions, option: str = "--model", environ: Mapping[str, str] | None = None
) -> ChatModel:
    """Return the model that the options and `environ` (default: this process's) name.

    `option` is the option that named the model, for error texts.

    Raises:
        typer.BadParameter: naming the option: no key, no such file or function.
        typer.Exit: status 5, after the reason: the library of the endpoint is not installed.
    """
    if options.model.startswith(SCRIPT):
        return _scripted(options.model, option)
    llm = llm_from(options, os.environ if environ is None else environ, option)
    from repl_env.llm import model_factory

    try:
        model = model_factory.model_of(llm)
    except ImportError as error:
        typer.echo(f"repl-env: {error}", err=True)
        raise typer.Exit(ExitStatus.INFRASTRUCTURE) from error
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    assert model is not None  # llm_from gave it a name
    return model


def address_of(options: ModelOptions, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the endpoint of the model; None for a script, or a model at Hugging Face."""
    if options.model.startswith(SCRIPT):
        return None
    environ = os.environ if environ is None else environ
    given = options.base_url or environ.get("OPENAI_BASE_URL") or None
    return OPENAI if given is None and "/" not in options.model else given


def llm_from(options: ModelOptions, environ: Mapping[str, str], option: str = "--model") -> LLM:
    """Return the address and the key of the model.

    Without an address, `owner/name` is a model at Hugging Face and any other name one at OpenAI.
    OPENAI_API_KEY goes to the address that is given, HF_TOKEN to Hugging Face only.

    Raises:
        typer.BadParameter: a key is missing, or no model is named.
    """
    from repl_env.llm.model_spec import LLM

    if not options.model.strip():
        raise typer.BadParameter(f"{options.model!r} must name a model", param_hint=option)
    base_url = address_of(options, environ)
    return LLM(options.model, base_url, _key(options, base_url, environ, option))


def _key(
    options: ModelOptions, base_url: str | None, environ: Mapping[str, str], option: str
) -> str | None:
    at_hugging_face = base_url is None or _is_hugging_face(base_url)
    usual = "HF_TOKEN" if at_hugging_face else "OPENAI_API_KEY"
    name = options.api_key_env or usual
    if key := environ.get(name):
        return key
    if options.api_key_env is not None:
        raise typer.BadParameter(f"{name} is not set", param_hint="--api-key-env")
    if base_url is None or base_url == OPENAI:
        where = "Hugging Face" if base_url is None else "OpenAI"
        raise typer.BadParameter(
            f"{options.model!r} is a model of {where}, and its key {name} is not set; set {name}, "
            "or give --base-url for another endpoint",
            param_hint=option,
        )
    return None  # an endpoint of one's own may ask for none


def _is_hugging_face(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "huggingface.co" or host.endswith(".huggingface.co")


def digest_of(model: str | None) -> str:
    """Return the digest of the file of a scripted model; "" for other models."""
    if model is None or not model.startswith(SCRIPT):
        return ""
    return named(model.removeprefix(SCRIPT), "--model").digest


def _scripted(model: str, option: str) -> ChatModel:
    from repl_env.concurrency.user_functions import call_user_function
    from repl_env.llm.scripted_model import ScriptedModel

    reference = model.removeprefix(SCRIPT)
    function = named(reference, option).function
    path, _, name = reference.rpartition(":")

    # As other functions of users: a plain one in a thread, for it may wait; a `sys.exit` is its
    # failure, and not the end of the command.
    async def reply(request: ModelRequest) -> Any:
        return await call_user_function(function, request)

    return ScriptedModel(reply, name=f"{Path(path).stem}:{name}")
