"""Launchers of template processes outside of this process: in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import IsolationError

if TYPE_CHECKING:
    from ..zygote.client.zygote_process import ZygoteLauncher
    from .container_settings import ContainerSettings


def container_launcher(settings: ContainerSettings) -> ZygoteLauncher:
    """Return the launcher of a template in a container.

    Raises:
        IsolationError: no daemon answers, or the Python package `docker` is missing.
    """
    try:
        from .docker import ContainerLauncher
    except ModuleNotFoundError as error:
        raise _without(error) from error
    return ContainerLauncher(settings)


def clean() -> list[str]:
    """Remove containers whose host process has ended; return their names.

    Raises:
        SandboxError: no daemon answers, the daemon refuses, or the Python package `docker` is
            missing.
    """
    try:
        from .orphaned_containers import remove
    except ModuleNotFoundError as error:
        raise _without(error) from error
    return remove()


def _without(error: ModuleNotFoundError) -> IsolationError:
    if error.name is None or error.name.startswith(__name__.partition(".")[0]):
        raise error
    return IsolationError(
        "container",
        "docker",
        f"the Python package {error.name} is not installed",
        "pip install 'repl-env[docker]'",
    )
