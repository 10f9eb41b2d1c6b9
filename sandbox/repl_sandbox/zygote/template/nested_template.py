"""Turns a fork of the zygote into a template with shared objects, and a zygote of its own.

It is forked from the template alone, never from a session, so no code of a session ever ran in it.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace

from ...errors import IsolationError
from ...jail import processes
from ...worker.display.error_hints import count_memory_from
from ..warmup.immortal_objects import immortalise
from . import shared_object_loader
from .sealed_template import SealedTemplate, data_segment


def grow(template: SealedTemplate, fd: int, manifest: tuple[int, int]) -> SealedTemplate:
    """Return `template` with the objects of file `fd`, which is closed, as variables of each
    session.

    Raises:
        SandboxError: as `shared_object_loader.unpack`.
        IsolationError: a thread is still running.
    """
    if template.tier != "jailed":
        # A fork does not inherit it.
        processes.adopt_orphans(needed=template.tier != "alone")
    given_back = template.data_segment - data_segment()  # and the memory is free again
    objects = shared_object_loader.unpack(fd, *manifest)
    os.close(fd)
    if processes.thread_count() != 1:
        raise IsolationError(template.tier, "single thread", "numpy left a thread")
    template.worker.share(objects)
    immortalise()
    # Objects that are not garbage now never will be, and a collection would copy all of them.
    gc.freeze()
    grown = data_segment() + given_back
    count_memory_from(grown)
    return replace(template, data_segment=grown, nested=True)
