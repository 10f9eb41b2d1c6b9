"""Ways to start a template elsewhere than as a child of this process, loaded when one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import IsolationError

if TYPE_CHECKING:
    from ..zygote.client.zygote_process import ZygoteLauncher
    from .container_settings import ContainerSettings


def container(settings: ContainerSettings) -> ZygoteLauncher:
    """The launcher of a template in a container.

    Raises:
        IsolationError: there is no daemon, or no package to talk to it.
    """
    try:
        from .docker import ContainerLauncher
    except ModuleNotFoundError as error:
        raise _without(error) from error
    return ContainerLauncher(settings)


def clean() -> list[str]:
    """Remove containers that outlived the processes that they were made for; their names.

    Raises:
        SandboxError: no daemon answers, or it refuses; or there is no package to talk to it.
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
