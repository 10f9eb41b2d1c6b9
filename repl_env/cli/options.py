"""Options that commands share: isolation, limits, output; their types, groups and errors."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from enum import Enum, IntEnum, StrEnum
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

if TYPE_CHECKING:
    from repl_sandbox import Limits, Policy


# The exit statuses of `repl-env`, the same for every command.


class ExitStatus(IntEnum):
    """Exit status of a command. The argument parser gives 2, the shell 130."""

    OK = 0
    FAILED = 1  # or: no answer
    USAGE = 2
    TIER_UNAVAILABLE = 3
    BUDGET = 4
    INFRASTRUCTURE = 5  # the model, or a service behind it
    INTERRUPTED = 130  # 128 + SIGINT


# Errors of values that typer cannot convert: the option, its value, and the allowed values.


def naming_value(error: typer.BadParameter, arguments: Sequence[str]) -> typer.BadParameter:
    """Return `error` with the value, named as the option or the variable that it comes from.

    Versions of typer that convert by pydantic leave the value out. A missing option is explained by
    its help. Other errors stay as they are.
    """
    option: Any = error.param
    if option is None or option.param_type_name != "option" or error.param_hint is not None:
        return error
    if type(error).__name__ == "MissingParameter":  # by name: some typers have a click of their own
        text = f"it is missing. {option.help}"
        return typer.BadParameter(text, ctx=error.ctx, param_hint=max(option.opts, key=len))
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    text = _with_value(details[0]) if details else error.message
    return typer.BadParameter(text, ctx=error.ctx, param_hint=_name(option, arguments))


def _with_value(detail: dict[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    allowed = message.removeprefix("Input should be ").partition(",")[0]
    if message.startswith("Input should be "):
        return f"{str(detail['input'])!r} must be {allowed}"
    return message


def _name(option: Any, arguments: Sequence[str]) -> str:
    typed = [argument.partition("=")[0] for argument in arguments]
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    if not any(opt in typed for opt in option.opts):
        for variable in variables:
            if os.environ.get(variable):
                return str(variable)
    return str(max(option.opts, key=len))


# Functions that the command line names: `module:function` or `FILE.py:function`.


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """A function, and a digest of the file that it stands in ("" if it stands in none)."""

    function: Callable[..., Any]
    digest: str


def named(reference: str, option: str) -> FunctionReference:
    """Return the function that `reference` names; modules may be in the current folder.

    Raises:
        typer.BadParameter: for `option`, saying what is wrong.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name.isidentifier():
        raise _wrong(
            option, f"{reference!r} is not of the form module:function or FILE.py:function"
        )
    try:
        module = _of_file(Path(where)) if where.endswith(".py") else _of_name(where)
        function = getattr(module, name, None)
    # Boundary: importing runs the user's code, which may raise anything.
    except Exception as error:
        raise _wrong(option, f"{reference}: {type(error).__name__}: {error}") from error
    if function is None:
        raise _wrong(option, f"{where} has no function {name!r}")
    if not callable(function):
        raise _wrong(option, f"{reference} is {type(function).__name__}, not a function")
    file = getattr(module, "__file__", None)
    return FunctionReference(
        function, hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    )


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # files beside it can be imported, as `python FILE.py` has it
    spec = spec_from_file_location(f"_repl_env_cli_{path.stem}", path)
    assert spec is not None  # a path that ends with .py has one
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for it there
    # Not by the loader: its cache of bytecode takes two texts of one second and size for the same.
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


def _of_name(name: str) -> ModuleType:
    # A console script has its own folder on the path, not the one it is called in.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def _wrong(option: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{option}'")


# The headings under which help screens list options.

INPUT: Final = "Input"
MODEL: Final = "Model"
TURNS: Final = "Turns and child runs"
BUDGET: Final = "Budget"
EVALUATION: Final = "Evaluation"
ISOLATION: Final = "Isolation"
LIMITS: Final = "Limits of a session"
OUTPUT: Final = "Output"


# `with_option_groups`: options that commands share, as dataclasses in the signatures of commands.
#
# A parameter whose annotation is a dataclass stands for an option for each field. A field whose
# annotation is a dataclass stands for the options of that one.


def with_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of its groups, which the function gets as objects."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            # By keyword: options without a default may follow others.
            parameters.append(
                parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            )

    @wraps(function)
    def command(**values: Any) -> None:
        made = {name: _taken_from(values, group) for name, group in groups.items()}
        function(**values, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _options(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _options(hint)
        else:
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _taken_from(values: dict[str, Any], group: Any) -> Any:
    """Return the group made of its options, which are removed from `values`."""
    hints = get_type_hints(group, include_extras=True)
    made = {
        field.name: _taken_from(values, hints[field.name])
        if is_dataclass(hints[field.name])
        else values.pop(field.name)
        for field in fields(group)
    }
    return group(**made)


# The types of a command's options, from the annotations of its function.
#
# Versions of typer keep the types of parameters in different places.


def option_types(command: Any) -> dict[str, type]:
    """Return the type of each parameter by name; of a list, the type of its items."""
    if command.callback is None:
        return {}
    signature = inspect.signature(command.callback, eval_str=True)
    return {
        parameter.name: _bare(parameter.annotation) for parameter in signature.parameters.values()
    }


def choices(kind: type | None) -> tuple[str, ...]:
    """Return the values that an option of this type takes; () if it takes any."""
    if kind is None or not issubclass(kind, Enum):
        return ()
    return tuple(str(each.value) for each in kind)


def _bare(annotation: Any) -> type:
    """The type without `Annotated`, `None` and `list` around it."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        (first, *_) = (each for each in get_args(annotation) if each is not type(None))
        return _bare(first)
    if get_origin(annotation) is list:
        return _bare(get_args(annotation)[0])
    return annotation if isinstance(annotation, type) else object


# `--json` of commands: JSON instead of text or tables.

# Of commands whose options are in no groups.
AsJSON: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
# Of commands with groups of options.
JSONOutput: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)
]


# Options of commands that write a page: `--html` and `--max-size`.

PagePath: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="OUT",
        help="Write a page for a browser: one HTML file, which works from disk.",
        rich_help_panel=OUTPUT,
    ),
]
PageSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        help="Maximum size of the page of --html, such as 50MB; longer outputs are cut to fit.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The page that a command writes; without `html`, none."""

    html: PagePath = None
    max_size: PageSize = None

    def check(self) -> int | None:
        """Return the maximum size in bytes; None without `--max-size`.

        Raises:
            typer.BadParameter: no page can be written. Call this before the work of the command.
        """
        from repl_sandbox.types import parse_size

        if self.html is None:
            if self.max_size is not None:
                raise typer.BadParameter("--max-size goes with --html")
            return None
        from repl_env.display.pages import check_target

        try:
            check_target(self.html)
            return None if self.max_size is None else parse_size(self.max_size, "--max-size")
        except OSError as error:
            raise typer.BadParameter(_reason(error), param_hint="--html") from error
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def write_page_file(out: Path, size: int | None, data: Callable[[], dict[str, Any]]) -> None:
    """Write the page with the result of `data`.

    Raises:
        typer.BadParameter: the page cannot be written, or would exceed `size` bytes.
    """
    from repl_env.display.pages import PageTooLarge, write_page

    try:
        write_page(data(), out, size)
    except PageTooLarge as error:
        hint = "--max-size SIZE writes it, and cuts the longest outputs where it has to"
        raise typer.BadParameter(f"{error}; {hint}", param_hint="--html") from error
    except OSError as error:
        raise typer.BadParameter(_reason(error), param_hint="--html") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-size") from error
    typer.echo(f"Wrote {out}", err=True)


def _reason(error: OSError) -> str:
    return str(error) if error.filename is None else f"{error.filename}: {error.strerror}"


# `Trial`: whether a session of one tier works on this system, found by starting one.


@dataclass(frozen=True, slots=True)
class Trial:
    """A session that was started to see: its layers, or the step that failed."""

    tier: str
    works: bool
    layers: tuple[dict[str, Any], ...] = ()
    step: str = ""
    message: str = ""
    remedy: str = ""

    def has(self, layer: str) -> bool:
        """Return whether the session has `layer`."""
        return any(each["name"] == layer and each["active"] for each in self.layers)


def try_tier(tier: str, **arguments: str | None) -> Trial:
    """Start a sandbox of `tier`, open a session in it and ask what holds it."""
    try:
        from repl_sandbox import Sandbox
        from repl_sandbox.errors import IsolationError
    except (ImportError, OSError) as error:
        # The engine's host side loads only where its system calls exist.
        return Trial(tier, False, step="import", message=str(error))
    try:
        settings: Any = {"isolation": tier, **arguments}
        with Sandbox(**settings) as sandbox, sandbox.session() as session:
            answered = session.run("1 + 1").value == "2"
            isolation = session.isolation
    except IsolationError as error:
        return Trial(tier, False, step=error.step, message=str(error), remedy=error.remedy)
    except Exception as error:  # noqa: BLE001 (a diagnosis reports what went wrong, whatever it is)
        return Trial(tier, False, step="session", message=f"{type(error).__name__}: {error}")
    layers = tuple(asdict(layer) for layer in isolation.layers)
    if not answered:
        return Trial(tier, False, layers, "session", "the session does not answer `1 + 1`")
    return Trial(tier, isolation.tier == tier, layers)


# The options of a command for the isolation of its sessions and for the language of cells.


class Isolation(StrEnum):
    """The tiers by name, and the strongest of `jailed` and `confined` that works."""

    AUTO = "auto"
    JAILED = "jailed"
    CONTAINER = "container"
    CONFINED = "confined"
    PROCESS = "process"


class Require(StrEnum):
    """The weakest tier to accept."""

    JAILED = "jailed"
    CONTAINER = "container"
    CONFINED = "confined"
    PROCESS = "process"


class LanguageName(StrEnum):
    """The part of Python that cells may use."""

    FULL = "full"
    LINT = "lint"
    RESTRICTED = "restricted"


IsolationOption: TypeAlias = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        metavar="TIER",
        help="Isolation tier of the sessions.",
        rich_help_panel=ISOLATION,
    ),
]
RequireOption: TypeAlias = Annotated[
    Require | None,
    typer.Option(
        "--require",
        metavar="TIER",
        help="Weakest isolation tier to accept.",
        show_default="confined",
        rich_help_panel=ISOLATION,
    ),
]
ImageOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Image of the container, with --isolation container.",
        rich_help_panel=ISOLATION,
    ),
]
RuntimeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="Container runtime, such as runsc; by default the daemon's own.",
        rich_help_panel=ISOLATION,
    ),
]
Preload: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--preload",
        metavar="MODULE",
        help="Modules to import before sessions start; repeat, or use commas.",
        rich_help_panel=ISOLATION,
    ),
]
Python: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="FILE",
        help="Interpreter of the sessions, CPython 3.11 or later; by default that of repl-env.",
        rich_help_panel=ISOLATION,
    ),
]
Mounts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--mount",
        metavar="[INSIDE=]PATH",
        help="A file or directory that sessions may read, at the same path or at INSIDE; may be "
        "repeated.",
        rich_help_panel=ISOLATION,
    ),
]
Language: TypeAlias = Annotated[
    LanguageName,
    typer.Option(
        "--language",
        metavar="NAME",
        help="Language policy of cells; it isolates nothing.",
        rich_help_panel=LIMITS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The isolation of sessions, and the modules that they start with."""

    isolation: IsolationOption = Isolation.AUTO
    require: RequireOption = None
    image: ImageOption = None
    runtime: RuntimeOption = None
    preload: Preload = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a sandbox, which an environment and a runner take too."""
        return {
            "isolation": self.isolation.value,
            "require": None if self.require is None else self.require.value,
            "image": self.image,
            "runtime": self.runtime,
            "preload": modules_of(self.preload),
        }


def policy_of(language: LanguageName) -> Policy | None:
    """Return the policy of this name."""
    from repl_sandbox import Policy

    names: dict[LanguageName, Literal["lint", "restricted"]] = {
        LanguageName.LINT: "lint",
        LanguageName.RESTRICTED: "restricted",
    }
    name = names.get(language)
    return None if name is None else Policy(language=name)


def mounts_of(given: Sequence[str] | None) -> dict[str, str]:
    """Return the paths of the host by their paths in a session."""
    pairs = (each.partition("=") for each in given or ())
    return {head: (tail if equals else head) for head, equals, tail in pairs}


def modules_of(preload: Sequence[str] | None) -> tuple[str, ...]:
    """Return the named modules; an option may be repeated, and have several names."""
    return tuple(name for given in preload or () for name in given.replace(",", " ").split())


@contextmanager
def opening(weaker: str = "") -> Generator[None]:
    """Print a sandbox's refusal to stderr and exit with its status.

    `weaker` is a command that accepts tier confined: it is named if only tier jailed was acceptable
    and sessions of tier confined can start here.

    Raises:
        typer.BadParameter: an argument is wrong, as a size that is none.
        typer.Exit: status 3, there is no such tier here; status 5, the sandbox does not start.
    """
    from repl_sandbox.errors import IsolationError, SandboxError

    try:
        yield
    except IsolationError as error:
        typer.echo(f"repl-env: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(f"  {note}", err=True)
        depends_on_tier = error.tier == Isolation.JAILED and error.step != "single thread"
        if weaker and depends_on_tier and _is_confined_possible():
            notice = "Tier confined works here. It is weaker (docs/design/tiers.md); to accept it:"
            typer.echo(f"{notice}\n  {weaker}", err=True)
        typer.echo("`repl-env doctor` shows what this system offers.", err=True)
        raise typer.Exit(ExitStatus.TIER_UNAVAILABLE) from error
    except SandboxError as error:
        typer.echo(f"repl-env: {error}", err=True)
        raise typer.Exit(ExitStatus.INFRASTRUCTURE) from error
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _is_confined_possible() -> bool:
    return try_tier(Isolation.CONFINED).works


# The limits of a session, one option for each field of `repl_sandbox.Limits`.

# The options of commands whose sessions call no functions of the host lack `host_timeout`.
OPTIONS = {
    "memory": "--memory",
    "timeout": "--timeout",
    "processes": "--processes",
    "open_files": "--open-files",
    "file_size": "--file-size",
    "workspace": "--workspace",
    "output": "--output",
    "cpu_seconds": "--cpu-seconds",
    "grace": "--interrupt-grace",
    "host_timeout": "--host-timeout",
}
MEMORY_HELP = "Memory limit of a session, such as 512MiB or 2GB."
TIMEOUT_HELP = "Seconds that a cell may execute."
PROCESSES_HELP = "Maximum number of processes of a session."
OPEN_FILES_HELP = "Maximum number of open files of each process of a session."
FILE_SIZE_HELP = "Size limit of each file that a session writes."
WORKSPACE_HELP = "Size limit of all files in the working directory of a session."
OUTPUT_HELP = "Size limit of the output that is kept of a session."
CPU_HELP = "Maximum CPU time of a session in seconds, over all cells."
GRACE_HELP = "Seconds that an interrupted cell has to end."

Memory: TypeAlias = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help=MEMORY_HELP, rich_help_panel=LIMITS)
]
CellTimeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help=TIMEOUT_HELP, rich_help_panel=LIMITS)
]
Processes: TypeAlias = Annotated[
    int, typer.Option("--processes", help=PROCESSES_HELP, rich_help_panel=LIMITS)
]
OpenFiles: TypeAlias = Annotated[
    int, typer.Option("--open-files", help=OPEN_FILES_HELP, rich_help_panel=LIMITS)
]
FileSize: TypeAlias = Annotated[
    str, typer.Option("--file-size", metavar="SIZE", help=FILE_SIZE_HELP, rich_help_panel=LIMITS)
]
Workspace: TypeAlias = Annotated[
    str, typer.Option("--workspace", metavar="SIZE", help=WORKSPACE_HELP, rich_help_panel=LIMITS)
]
Output: TypeAlias = Annotated[
    str, typer.Option("--output", metavar="SIZE", help=OUTPUT_HELP, rich_help_panel=LIMITS)
]
CPUSeconds: TypeAlias = Annotated[
    float | None,
    typer.Option("--cpu-seconds", metavar="SECONDS", help=CPU_HELP, rich_help_panel=LIMITS),
]
InterruptGrace: TypeAlias = Annotated[
    float,
    typer.Option("--interrupt-grace", metavar="SECONDS", help=GRACE_HELP, rich_help_panel=LIMITS),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The limits of each session."""

    timeout: CellTimeout = 30.0
    memory: Memory = "1GiB"
    processes: Processes = 64
    open_files: OpenFiles = 256
    file_size: FileSize = "256MiB"
    workspace: Workspace = "256MiB"
    output: Output = "64MiB"
    cpu_seconds: CPUSeconds = None
    interrupt_grace: InterruptGrace = 0.5

    def limits(self, **more: Any) -> Limits:
        """Return the limits, with `more` fields.

        Raises:
            typer.BadParameter: naming the field.
        """
        from repl_sandbox import Limits

        names = {"interrupt_grace": "grace"}
        values = {
            names.get(each.name, each.name): getattr(self, each.name) for each in fields(self)
        }
        with opening():
            return Limits(**values, **more)
