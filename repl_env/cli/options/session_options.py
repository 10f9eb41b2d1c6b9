"""The options of a command for the isolation of its sessions and for the language of cells."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from ..exit_status import ExitStatus
from .help_groups import ISOLATION, LIMITS
from .tier_trial import try_tier

if TYPE_CHECKING:
    from repl_sandbox import Policy


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
        if weaker and error.tier == Isolation.JAILED and _is_confined_possible():
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
