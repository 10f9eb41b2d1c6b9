"""Trajectories: the record of a run tree, written, read and replayed. Names load at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.trajectory import Trajectory
    from repl_env.rlm.trajectory.trajectory_tree import Call, Cell, Run, Turn
    from repl_env.rlm.trajectory.trajectory_writer import TrajectoryWriter

__all__ = [
    "Call",
    "Cell",
    "Run",
    "Trajectory",
    "TrajectoryWriter",
    "Turn",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "repl_env.rlm.trajectory.trajectory": ("Trajectory",),
        "repl_env.rlm.trajectory.trajectory_writer": ("TrajectoryWriter",),
        "repl_env.rlm.trajectory.trajectory_tree": (
            "Call",
            "Cell",
            "Run",
            "Turn",
        ),
    },
)
