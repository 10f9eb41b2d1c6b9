"""`RECIPES`: the steps of each tier, for init, for workers and for file helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from .confined_steps import (
    ALONE_FILE_HELPER,
    ALONE_INIT,
    ALONE_WORKER,
    CONFINED_INIT,
    CONFINED_WORKER,
    FILE_HELPER,
    FOLDER,
    PROCESS_FILE_HELPER,
    PROCESS_INIT,
    PROCESS_WORKER,
)
from .jailed_steps import INIT, TELL_WORKER, VIEW, WAIT_FOR_INIT, WORKER
from .recipe_step import Step


class Recipe(NamedTuple):
    """Steps of a tier: of init, of the first worker, of each later worker, of each file helper."""

    init: Sequence[Step]
    first_worker: Sequence[Step]
    worker: Sequence[Step]
    file_helper: Sequence[Step]


# From the strongest to the weakest.
RECIPES: Final[Mapping[str, Recipe]] = {
    "jailed": Recipe((*INIT, *TELL_WORKER), (*VIEW, *WORKER, *WAIT_FOR_INIT), WORKER, FILE_HELPER),
    "confined": Recipe(
        (*CONFINED_INIT, *TELL_WORKER),
        (*FOLDER, *CONFINED_WORKER, *WAIT_FOR_INIT),
        CONFINED_WORKER,
        FILE_HELPER,
    ),
    # In a container that no other session is in.
    "alone": Recipe(
        (*ALONE_INIT, *TELL_WORKER),
        (*FOLDER, *ALONE_WORKER, *WAIT_FOR_INIT),
        ALONE_WORKER,
        ALONE_FILE_HELPER,
    ),
    "process": Recipe(
        (*PROCESS_INIT, *TELL_WORKER),
        (*FOLDER, *PROCESS_WORKER, *WAIT_FOR_INIT),
        PROCESS_WORKER,
        PROCESS_FILE_HELPER,
    ),
}
