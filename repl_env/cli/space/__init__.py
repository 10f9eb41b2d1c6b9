"""`repl-env space`: a server as a Space of Hugging Face."""

from __future__ import annotations

import typer

from .make import make
from .push import push
from .wheel import wheel

space = typer.Typer(help="Make a Space of Hugging Face, and push it.", no_args_is_help=True)
space.command("make")(make)
space.command("push")(push)
space.command("wheel")(wheel)
