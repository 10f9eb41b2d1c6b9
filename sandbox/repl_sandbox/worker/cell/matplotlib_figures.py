"""Open matplotlib figures as PNG images, taken at the end of a cell."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from ...protocol.messages import MAX_FIGURE_BYTES


def take_figures(limit: int = 10, max_bytes: int = MAX_FIGURE_BYTES) -> list[bytes]:
    """Return the open pyplot figures as PNG, oldest first, and close all.

    At most `limit` figures and `max_bytes` together: a model looks at a few, and they share one
    message. Figures that are left out, or cannot be drawn, are named on standard error. An
    interrupt, such as a time-out's, ends the drawing. If `matplotlib.pyplot` is not loaded, there
    are no figures, and nothing is imported.
    """
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures: list[bytes] = []
    try:
        numbers = pyplot.get_fignums()
        try:
            for number in numbers[:limit]:
                _take(pyplot, number, figures, max_bytes - sum(map(len, figures)))
            if len(numbers) > limit:
                _write_note(f"{len(numbers) - limit} more figures are not shown")
        finally:
            if numbers:
                pyplot.close("all")
    except KeyboardInterrupt:
        _write_note(f"drawing was interrupted; figures shown: {len(figures)}")
    # Boundary: a figure runs code of the user's (formatters, artists), and pyplot may be changed.
    except BaseException as error:  # noqa: BLE001
        _write_note(f"figures cannot be shown: {type(error).__name__}")
    return figures


def _take(pyplot: Any, number: int, figures: list[bytes], limit: int) -> None:
    picture = io.BytesIO()
    try:
        pyplot.figure(number).savefig(picture, format="png")
    except KeyboardInterrupt:
        raise
    # Boundary, as above: one broken figure does not cost the others.
    except BaseException as error:  # noqa: BLE001
        _write_note(
            f"figure {number} cannot be drawn: {type(error).__name__}: {_first_line(error)}"
        )
        return
    if picture.tell() > limit:
        _write_note(f"figure {number} is not shown: {picture.tell():,} bytes are too many")
        return
    figures.append(picture.getvalue())


def _first_line(error: BaseException) -> str:
    try:
        return str(error).partition("\n")[0][:200]
    except Exception:  # noqa: BLE001 (the exception's class may be the user's)
        return ""


def _write_note(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
