"""The model of a command, its budget and its contexts, from options and from the environment."""

from __future__ import annotations

import builtins
import json
import keyword
import math
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from repl_env.cli.options import BUDGET, INPUT, MODEL, ExitStatus, named
from repl_env.common.files import open_regular, read_regular
from repl_env.common.values import text_or_bytes
from repl_env.llm.spec import OPENAI
from repl_env.rlm.budget import Budget, Price

if TYPE_CHECKING:
    from repl_env.errors import BudgetExceeded
    from repl_env.llm.base import ChatModel, ModelRequest
    from repl_env.llm.spec import LLM


# Options for the budget of a tree of runs and the prices of its models.

Calls: TypeAlias = Annotated[
    int,
    typer.Option(
        "--budget-calls",
        help="Maximum number of model calls in the whole tree.",
        rich_help_panel=BUDGET,
    ),
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--budget-tokens",
        metavar="IN[:OUT]",
        help="Maximum tokens: input, input:output, or :output.",
        rich_help_panel=BUDGET,
    ),
]
Dollars: TypeAlias = Annotated[
    float | None,
    typer.Option("--budget-usd", help="Maximum cost in US dollars.", rich_help_panel=BUDGET),
]
Seconds: TypeAlias = Annotated[
    float | None,
    typer.Option("--budget-seconds", help="Maximum wall time in seconds.", rich_help_panel=BUDGET),
]
Prices: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="MODEL=IN:OUT",
        help="Price in US dollars per million tokens; may be repeated.",
        rich_help_panel=BUDGET,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """The budget of a tree of runs, and prices."""

    budget_calls: Calls = 200
    budget_tokens: Tokens = None
    budget_usd: Dollars = None
    budget_seconds: Seconds = None
    price: Prices = None

    def budget(self) -> Budget:
        """Return the budget; typer.BadParameter names an option with a wrong value."""
        return budget_from(
            self.budget_calls, self.budget_tokens, self.budget_usd, self.budget_seconds
        )

    def prices(self) -> dict[str, Price]:
        """Return the prices by model; typer.BadParameter names a wrong one."""
        return dict(map(_price, self.price or ()))


_OPTIONS = {
    "calls": "--budget-calls",
    "input_tokens": "--budget-tokens",
    "output_tokens": "--budget-tokens",
    "usd": "--budget-usd",
    "seconds": "--budget-seconds",
}


def refusal_text(error: BudgetExceeded) -> str:
    """Return the text of `error` with the option that sets the limit."""
    if error.unpriced is not None:
        return _needs_price(error.unpriced)
    option = _OPTIONS.get(error.field)
    return f"{error} ({option} sets the limit)" if option else str(error)


def check_price(budget: Budget, prices: Mapping[str, Price], model: str | None) -> None:
    """Raise typer.BadParameter if the budget is in dollars and the model's price is unknown."""
    if budget.usd is not None and model is not None and model not in prices:
        raise typer.BadParameter(_needs_price(model))


def _needs_price(model: str) -> str:
    price = shlex.quote(f"{model}=IN:OUT")
    return (
        f"--budget-usd needs the price of model {model!r}, which is unknown: give "
        f"--price {price}, in US dollars for a million tokens in and out"
    )


def budget_from(calls: int, tokens: str | None, usd: float | None, seconds: float | None) -> Budget:
    """Return the budget of these options.

    Raises:
        typer.BadParameter: naming the field.
    """
    into, _, out = (tokens or "").partition(":")
    try:
        return Budget(
            calls=calls,
            input_tokens=_tokens(into),
            output_tokens=_tokens(out),
            usd=usd,
            seconds=seconds,
        )
    except ValueError as error:
        field, _, rest = str(error).removeprefix("budget.").partition(" ")
        value = {"calls": calls, "usd": usd, "seconds": seconds}.get(field, tokens)
        message = f"{str(value)!r} {rest.partition(', not ')[0]}"
        raise typer.BadParameter(message, param_hint=_OPTIONS.get(field)) from error


def _tokens(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a number of tokens", param_hint="--budget-tokens"
        ) from None


def _price(given: str) -> tuple[str, Price]:
    name, _, pair = given.rpartition("=")
    numbers = _numbers(pair.split(":"))
    if not name or len(numbers) != 2:
        raise typer.BadParameter(f"{given!r} must be MODEL=IN:OUT", param_hint="--price")
    return name, Price(*numbers)


def _numbers(texts: Sequence[str]) -> list[float]:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(math.isfinite(one) and one >= 0 for one in numbers) else []


# Contexts of a command: `--context FILE`, once or several times, `NAME=FILE`, `-`.

STDIN = "-"

_BUILTINS = frozenset(dir(builtins))

_HELP = (
    "A file for the variable `context`. Several files become variables with the files' names, or "
    "NAME by NAME=FILE; list.txt becomes list_, because list is a builtin of Python. UTF-8 files "
    "become text, others bytes; - is standard input."
)

ContextFiles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--context", metavar="FILE", help=_HELP, rich_help_panel=INPUT)
]


def contexts_from(given: Sequence[str]) -> dict[str, Path | str | bytes]:
    """Return the contexts by variable: readable files as paths, the content of `-`.

    Raises:
        typer.BadParameter: naming the file: it cannot be read, or two would have one name.
    """
    if list(given).count(STDIN) > 1:
        raise _bad("standard input can be read once only")
    contexts: dict[str, Path | str | bytes] = {}
    for one in given:
        name, path = _named(one)
        if name is None:
            name = "context" if len(given) == 1 else _name_of(path)
        if name in contexts:
            raise _bad(f"{one}: there is a context {name!r} already; write NAME={path}")
        contexts[name] = _read_stdin() if path == STDIN else _readable(Path(path))
    return contexts


def loaded(contexts: Mapping[str, Path | str | bytes]) -> dict[str, str | bytes]:
    """Return the contexts with the contents of files, as a session takes them."""
    return {
        name: text_or_bytes(_bytes_of(value)) if isinstance(value, Path) else value
        for name, value in contexts.items()
    }


def _named(given: str) -> tuple[str | None, str]:
    """Return a name and a path; a file whose own name has a `=` is a path."""
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return None, given
    if not name.isidentifier() or keyword.iskeyword(name):
        raise _bad(f"{given}: there is no such file, and {name!r} cannot name a variable")
    if name in _BUILTINS:
        raise _bad(
            f"{given}: {name!r} is a builtin of Python, which code needs; write {name}_={path}"
        )
    return name, path


def _name_of(path: str) -> str:
    if path == STDIN:
        return "stdin"
    # As Python reads names in code; other systems write an accented letter as two characters.
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", Path(path).stem))
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"_{name}"
    if name in _BUILTINS:
        typer.echo(
            f"{path} is the variable {name}_, because {name} is a builtin of Python", err=True
        )
        name = f"{name}_"
    return name


def _readable(path: Path) -> Path:
    if path.is_dir():
        raise _bad(f"{path} is a directory")
    with _reading(path), open_regular(path):
        return path


def _bytes_of(path: Path) -> bytes:
    with _reading(path):
        return read_regular(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _bad(f"{path}: {error.strerror}") from error


def _read_stdin() -> str | bytes:
    return text_or_bytes(sys.stdin.buffer.read())


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--context")


# The model of a command, from options and from the environment of the process.
#
# This is the one place that reads OPENAI_BASE_URL, OPENAI_API_KEY and HF_TOKEN. A key is never an
# option: the arguments of a process can be read by every user of the machine.

SCRIPT = "script:"

_MODEL_HELP = (
    "The model: NAME at --base-url, or else at OpenAI; OWNER/NAME at Hugging Face; ./FOLDER of "
    "transformers; or script:FILE.py:FUNCTION, whose function(request) returns the reply as text."
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


# How a model samples its replies; options that are not given leave the model's own defaults.
Temperature: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        help="Sampling temperature; 0 takes the likeliest token.",
        show_default="the model's",
        rich_help_panel=MODEL,
    ),
]
TopP: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        help="Share of the likeliest tokens that are sampled from.",
        show_default="the model's",
        rich_help_panel=MODEL,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of the model's sampling, where it has one.",
        show_default="none",
        rich_help_panel=MODEL,
    ),
]
MaxTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        help="Maximum number of tokens of a reply.",
        show_default="the model's",
        rich_help_panel=MODEL,
    ),
]
ModelArguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="K=V",
        help="A further argument of sampling, such as top_k=20, or max_retries=9 of an endpoint; V "
        "is JSON, else text. May be repeated.",
        rich_help_panel=MODEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingArguments:
    """How a model samples its replies."""

    temperature: Temperature = None
    top_p: TopP = None
    seed: Seed = None
    max_tokens: MaxTokens = None
    model_arg: ModelArguments = None

    def arguments(self, max_tokens: str = "max_tokens") -> dict[str, Any]:
        """Return the arguments of sampling; `max_tokens` is the name of the limit of a reply.

        Raises:
            typer.BadParameter: `--model-arg` is not of the form K=V, or names an argument twice.
        """
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            max_tokens: self.max_tokens,
        }
        found = {name: value for name, value in given.items() if value is not None}
        for name, value in map(_model_argument, self.model_arg or ()):
            if name in found:
                message = f"{name} is given twice"
                raise typer.BadParameter(message, param_hint="--model-arg")
            found[name] = value
        return found


def option_of(argument: str) -> str:
    """Return the option that gives an argument of sampling."""
    is_own = argument in SamplingArguments.__dataclass_fields__
    return f"--{argument.replace('_', '-')}" if is_own else "--model-arg"


def _model_argument(given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    if not equals or not name.isidentifier():
        message = f"{given!r} must be K=V, such as top_k=20"
        raise typer.BadParameter(message, param_hint="--model-arg")
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The values of the model options. `api_key_env` is the name of a variable, not a key."""

    model: ModelName
    base_url: BaseURL = None
    api_key_env: KeyVariable = None
    sampling: SamplingArguments = field(default_factory=SamplingArguments)


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
        if option == "--model" and (given := options.sampling.arguments()):
            message = f"a script samples by itself, and takes no {', '.join(given)}"
            raise typer.BadParameter(message, param_hint=option)
        return _scripted(options.model, option)
    environ = os.environ if environ is None else environ
    try:
        if is_folder(options.model):
            return _local(options)
        from repl_env.llm import factory

        llm = llm_from(options, environ, option)
        sampling = dict(llm.sampling)
        own = {name: sampling.pop(name) for name in _OF_ENDPOINTS if name in sampling}
        model = factory.model_of(replace(llm, sampling=sampling), **own)
    except ImportError as error:
        typer.echo(f"repl-env: {error}", err=True)
        raise typer.Exit(ExitStatus.INFRASTRUCTURE) from error
    except (TypeError, ValueError, OSError) as error:
        raise typer.BadParameter(f"{options.model}: {error}", param_hint=option) from error
    assert model is not None  # llm_from gave it a name
    return model


def is_folder(model: str) -> bool:
    """Return whether `model` names a folder, by its form: a name on the hub has no such form."""
    return model.startswith(("./", "../", "/", "~/")) or model in (".", "..")


def _local(options: ModelOptions) -> ChatModel:
    """Return the model of transformers in a folder.

    Raises:
        ImportError: transformers is not installed.
        TypeError, ValueError, OSError: the folder has no model, or an argument is wrong.
    """
    from repl_env.llm.transformers import TransformersModel

    folder = Path(options.model).expanduser()
    if not (folder / "config.json").is_file():
        what = "there is no such folder" if not folder.is_dir() else "no config.json in it"
        raise ValueError(f"{what}; a folder of `save_pretrained` has a model and its tokenizer")
    sampling = options.sampling.arguments("max_new_tokens")
    limit = {"max_new_tokens": sampling.pop("max_new_tokens", 2048)}
    own = {name: sampling.pop(name) for name in _OF_TRANSFORMERS if name in sampling}
    return TransformersModel(
        str(folder), name=options.model, sampling=sampling, local_files_only=True, **limit, **own
    )


# Arguments of models behind endpoints that `--model-arg` sets; others are of sampling.
_OF_ENDPOINTS = ("timeout", "max_retries")
# Arguments of `TransformersModel` that `--model-arg` sets; others are of sampling.
_OF_TRANSFORMERS = ("device", "dtype", "batch_size", "template", "record_tokens")


def address_of(options: ModelOptions, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the endpoint of the model; None for a script, a folder, or a model at Hugging Face."""
    if options.model.startswith(SCRIPT) or is_folder(options.model):
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
    from repl_env.llm.spec import LLM

    if not options.model.strip():
        raise typer.BadParameter(f"{options.model!r} must name a model", param_hint=option)
    base_url = address_of(options, environ)
    limit = "max_completion_tokens" if base_url == OPENAI else "max_tokens"
    return LLM(
        options.model,
        base_url,
        _key(options, base_url, environ, option),
        sampling=options.sampling.arguments(limit),
    )


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
    from repl_env.common.threads import call_user_function
    from repl_env.rlm.replay import ScriptedModel

    reference = model.removeprefix(SCRIPT)
    function = named(reference, option).function
    path, _, name = reference.rpartition(":")

    # As other functions of users: a plain one in a thread, for it may wait; a `sys.exit` is its
    # failure, and not the end of the command.
    async def reply(request: ModelRequest) -> Any:
        return await call_user_function(function, request)

    return ScriptedModel(reply, name=f"{Path(path).stem}:{name}")
