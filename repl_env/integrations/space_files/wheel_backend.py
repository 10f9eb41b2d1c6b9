"""A build backend (PEP 517) that hands out the wheel beside it."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Copy the wheel into `wheel_directory`; its name."""
    (wheel,) = Path(__file__).parent.glob("openenv_repl_env-*.whl")
    if not zipfile.is_zipfile(wheel):
        raise RuntimeError(
            f"{wheel.name} is not the wheel but a pointer to it: install git-lfs, run"
            " `git lfs install`, and clone this Space once more"
        )
    shutil.copyfile(wheel, Path(wheel_directory, wheel.name))
    return wheel.name


build_editable = build_wheel
