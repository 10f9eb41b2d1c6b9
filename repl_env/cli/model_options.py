"""Which model a command asks, said by options and by the environment of the process.

This is the one place that reads OPENAI_BASE_URL, OPENAI_API_KEY and HF_TOKEN. A key is never an
option: the arguments of a process can be read by every user of the machine.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from .status import Status

if TYPE_CHECKING:
    from repl_env.llm import LLM
    from repl_env.rlm.model import ChatModel

OPENAI = "https://api.openai.com/v1"
SCRIPT = "script:"

_MODEL_HELP = (
    "The model, as its endpoint names it; or script:FILE.py:FUNCTION, whose function(request) "
    "returns the reply as text."
)
_URL_HELP = "An OpenAI-compatible endpoint."
_KEY_HELP = "The environment variable that holds the key."

ModelName: TypeAlias = Annotated[str, typer.Option("--model", help=_MODEL_HELP)]
BaseURL: TypeAlias = Annotated[
    str | None, typer.Option("--base-url", help=_URL_HELP, show_default="$OPENAI_BASE_URL")
]
KeyVariable: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help=_KEY_HELP,
        show_default="OPENAI_API_KEY; HF_TOKEN for Hugging Face",
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What the options say. `api_key_env` is the name of a variable, not a key."""

    model: str
    base_url: str | None = None
    api_key_env: str | None = None


def model_from(options: ModelOptions, environ: Mapping[str, str] | None = None) -> ChatModel:
    """The model that the options and `environ` (default: this process's) ask for.

    Raises:
        typer.BadParameter: naming the option: no key, no such file or function.
        typer.Exit: status 5, after the reason: the library of the endpoint is not installed.
    """
    if options.model.startswith(SCRIPT):
        return _scripted(options.model)
    llm = llm_from(options, os.environ if environ is None else environ)
    try:
        model: ChatModel | None = import_module("repl_env.rlm.endpoints").model_of(llm)
    except ImportError as error:
        typer.echo(f"repl-env: {error}", err=True)
        raise typer.Exit(Status.INFRASTRUCTURE) from error
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    if model is None:
        raise typer.BadParameter("names no model", param_hint="--model")
    return model


def llm_from(options: ModelOptions, environ: Mapping[str, str]) -> LLM:
    """Where the model is and the key to it.

    Without an address, `owner/name` is a model at Hugging Face and any other name one at OpenAI.
    OPENAI_API_KEY goes to the address that is given, HF_TOKEN to Hugging Face only.

    Raises:
        typer.BadParameter: a key is missing, or no model is named.
    """
    from repl_env.llm import LLM

    if not options.model.strip():
        raise typer.BadParameter("must name a model", param_hint="--model")
    base_url = options.base_url or environ.get("OPENAI_BASE_URL") or None
    if base_url is None and "/" not in options.model:
        base_url = OPENAI
    return LLM(options.model, base_url, _key(options, base_url, environ))


def _key(options: ModelOptions, base_url: str | None, environ: Mapping[str, str]) -> str | None:
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
            f"{options.model!r} is asked for at {where}, and {name} is not set; set it, or give "
            "--base-url for another endpoint",
            param_hint="--model",
        )
    return None  # an endpoint of one's own may ask for none


def _is_hugging_face(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "huggingface.co" or host.endswith(".huggingface.co")


def _scripted(model: str) -> ChatModel:
    from repl_env.rlm.scripted import ScriptedModel

    path, _, name = model.removeprefix(SCRIPT).rpartition(":")
    if not path or not name:
        raise _bad(f"{model!r} must be script:FILE.py:FUNCTION")
    return ScriptedModel(_function(Path(path), name), name=f"{Path(path).stem}:{name}")


def _function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise _bad(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _bad(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    # Boundary: the file is the user's and may raise anything.
    except Exception as error:
        raise _bad(f"{path} raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise _bad(f"{path} has no function {name!r}")
    return function  # type: ignore[no-any-return]  # checked two lines above


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--model")
