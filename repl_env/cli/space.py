"""`repl-env space`: a server as a Space of Hugging Face: made, pushed, packed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

from repl_env.cli.options import AsJSON, ExitStatus, with_option_groups
from repl_env.common.files import read_regular_text

if TYPE_CHECKING:
    from repl_env.integrations.space import Files, SpaceConfig
    from repl_env.integrations.space_push import Pushed


# Options of a Space to be made, and errors of making one.

Keyed: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keyed", help="Require a key for every request; otherwise anybody may use the Space."
    ),
]
Title: TypeAlias = Annotated[
    str | None, typer.Option(help="Title of the Space; by default repl-env.")
]
Base: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The image to build on: one of Debian with Python of at least 3.11 and pip.",
        metavar="IMAGE",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """The options of a new Space."""

    keyed: Keyed = False
    title: Title = None
    base: Base = None

    @property
    def is_default(self) -> bool:
        """True if no option is given."""
        return not (self.keyed or self.title or self.base)

    def config(self, repo: str | None) -> SpaceConfig:
        """Return the configuration of the Space `repo`.

        Raises:
            typer.BadParameter: naming the option with a wrong value.
        """
        from repl_env.integrations.space import SpaceConfig

        given = {**asdict(self), "repo": repo}
        try:
            return SpaceConfig(**{name: each for name, each in given.items() if each is not None})
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


@contextmanager
def failures_reported() -> Iterator[None]:
    """Turn a Space or a wheel that cannot be made into a message and a status."""
    from repl_env.integrations.space import PackingError

    try:
        yield
    except PackingError as error:
        typer.echo(f"repl-env space: {error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        typer.echo(f"repl-env space: {reason}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


# `repl-env space make`: the folder of a Space.


@with_option_groups
def make(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write; made if it is not there.")
    ],
    space: SpaceOptions,
    repo: Annotated[
        str | None,
        typer.Option(help="The Space that the README names.", metavar="OWNER/NAME"),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite files in a folder that is not empty.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Write a complete Space: a server with the installed version of repl-env in a wheel."""
    from repl_env.integrations.space import make_space

    plan = space.config(repo)
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="'DIR'")
    with failures_reported():
        try:
            files = make_space(folder, plan, replace=replace)
        except FileExistsError as error:
            message = f"{folder} is not empty: --replace overwrites the files of a Space in it"
            raise typer.BadParameter(message, param_hint="'DIR'") from error
    names = sorted(file.name for file in files)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "keyed": space.keyed, "files": names}))
        return
    for name in names:
        typer.echo(folder / name)


# `repl-env space push`: a Space to the hub.

_LINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}:[0-9a-fA-F]{64}( expires=[\w:.+-]+)?")


Folder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Folder made by `space make`; by default one is made now.",
    ),
]
Private: TypeAlias = Annotated[
    bool, typer.Option("--private", help="Make a new Space a private one.")
]
KeyFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of `repl-env keys`; the hashes in it become a secret of the Space.",
    ),
]
Login: TypeAlias = Annotated[
    bool,
    typer.Option("--login", help="Use the token of `hf auth login` if HF_TOKEN is not set."),
]
Replace: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="Overwrite a Space that this command did not make.")
]


@with_option_groups
def push(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The Space to push to.")],
    space: SpaceOptions,
    folder: Folder = None,
    private: Private = False,
    api_keys: KeyFile = None,
    login: Login = False,
    replace: Replace = False,
    as_json: AsJSON = False,
) -> None:
    """Upload a new Space, or a new version of a Space, to the hub, with the token in HF_TOKEN.

    Exit status 1: the hub refuses the Space. 5: the hub was not reached, or failed.
    """
    if folder is not None and not space.is_default:
        raise typer.BadParameter("--keyed, --title and --base are of a Space that is made now")
    plan = space.config(repo)
    _check_library()
    keys = None if api_keys is None else _lines(api_keys)
    token = _token(login)
    files = _files(folder, plan)
    done = _pushed(files, repo, token=token, private=private, keys=keys, replace=replace)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    what = "made" if done.created else "updated" if done.changed else "has these files already"
    typer.echo(f"{done.page} {what}; when the hub has built it, it serves on {done.url}")
    if space.keyed and keys is None:
        typer.echo(
            "Its secret REPL_ENV_API_KEYS must have keys; --api-keys FILE sets it.", err=True
        )


def _check_library() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        message = f"repl-env space push: {error}. pip install 'repl-env[hf]' has what it needs"
        typer.echo(message, err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _token(login: bool) -> str:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token and login:
        from huggingface_hub import get_token

        token = get_token() or ""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise typer.BadParameter("the token has characters that no token has")  # it is not repeated
    if not token:
        message = "no token: set HF_TOKEN to one that may write"
        raise typer.BadParameter(f"{message}, or run `hf auth login` and say --login")
    return token


def _endpoint() -> str | None:
    """Return the address of the hub in the environment; None for the default one."""
    given = os.environ.get("HF_ENDPOINT", "").strip()
    if not given:
        return None
    try:
        url = urlsplit(given)
        good = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # half an address, or no port
        good = False
    if not good or url.query or url.fragment:
        raise typer.BadParameter("HF_ENDPOINT is no address of a hub, as https://huggingface.co")
    return given


def _lines(file: Path) -> str:
    """Return the entries of a key file, without comments, separated by commas."""
    try:
        text = read_regular_text(file)
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "no text"
        raise typer.BadParameter(f"{file}: {message}", param_hint="--api-keys") from error
    entries = [entry for line in text.splitlines() if (entry := line.partition("#")[0].strip())]
    if not entries or not all(map(_LINE.fullmatch, entries)):
        # The line is not repeated: it may be a key.
        message = f"{file} is no file of `repl-env keys`: it has lines NAME:HASH"
        raise typer.BadParameter(message, param_hint="--api-keys")
    return ",".join(entries)


def _files(folder: Path | None, plan: SpaceConfig) -> Files:
    """Return the files of `folder`, or of a new Space."""
    from repl_env.integrations.space import read_space, space_files

    with failures_reported():
        if folder is None:
            return space_files(plan)
        try:
            return read_space(folder)
        except (FileNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--folder") from error


def _pushed(
    files: Files, repo: str, *, token: str, private: bool, keys: str | None, replace: bool
) -> Pushed:
    from repl_env.integrations.space_push import PushError, push_space

    try:
        return push_space(
            files,
            repo,
            token=token,
            endpoint=_endpoint(),
            private=private,
            keys=keys,
            replace=replace,
        )
    except PushError as error:
        typer.echo(f"repl-env space push: {error}", err=True)
        raise typer.Exit(
            ExitStatus.INFRASTRUCTURE if error.passing else ExitStatus.FAILED
        ) from error


# `repl-env space wheel`: the distribution that AutoEnv finds.


def wheel(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the wheel.")],
) -> None:
    """Write the wheel of openenv-repl-env: the installed version, named as AutoEnv finds it."""
    from repl_env.integrations.space import pack_wheel

    with failures_reported():
        typer.echo(pack_wheel(folder))


# `repl-env space`: a server as a Space of Hugging Face.

space = typer.Typer(help="Make a Space of Hugging Face, and push it.", no_args_is_help=True)
space.command("make")(make)
space.command("push")(push)
space.command("wheel")(wheel)
