"""Containers that outlived the process that made them, as after a crash of the daemon."""

from __future__ import annotations

from .container import container_labels
from .docker import connect, translated


def remove() -> list[str]:
    """Remove such containers; return their names.

    Raises:
        SandboxError: no daemon answers, or the daemon refuses.
    """
    client = connect()
    try:
        with translated():
            found = client.containers.list(all=True, filters={"label": container_labels.OWNER})
            orphans = [each for each in found if container_labels.is_left(each.labels)]
            for container in orphans:
                container.remove(force=True, v=True)
            return [str(container.name) for container in orphans]
    finally:
        client.close()
