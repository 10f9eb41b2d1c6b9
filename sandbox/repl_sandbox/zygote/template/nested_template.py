"""How a fork of the zygote becomes a template with objects in it, and a zygote of its own.

It is forked from the template alone, never from a session, so that no code of a session ever ran in
it either.
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
    """`template` with the objects of file `fd`, which is closed, as variables of each session.

    Raises:
        SandboxError: as `parcel.unpack`.
        IsolationError: a thread was left running.
    """
    if template.tier != "jailed":
        # Which a fork does not inherit.
        processes.adopt_orphans(needed=template.tier != "alone")
    given_back = template.data_segment - data_segment()  # and to be had again
    objects = shared_object_loader.unpack(fd, *manifest)
    os.close(fd)
    if processes.thread_count() != 1:
        raise IsolationError(template.tier, "single thread", "numpy left a thread")
    template.worker.share(objects)
    immortalise()
    # What is no garbage now never will be, and a collection would copy all of it.
    gc.freeze()
    grown = data_segment() + given_back
    count_memory_from(grown)
    return replace(template, data_segment=grown, nested=True)
