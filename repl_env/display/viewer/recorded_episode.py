"""`viewable`: recorded episodes as trajectory files, which the pages show.

A recording (`repl_env.Recording`) is the download of the playground too. It has neither replies of
a model nor times, so the file has only the cells, each in a turn of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from repl_env.display.viewer.growing_lines import LONGEST_LINE
from repl_env.display.viewer.named_files import NamedFile, NamedFiles
from repl_env.display.viewer.view_data import kind_of
from repl_env.models import REPLAction
from repl_env.rlm.trajectory.event_codec import FORMAT, VERSION, as_line
from repl_env.storage.recordings import Recording

_RUN = "0"


def viewable(path: Path, folder: Path) -> Path:
    """Return `path`; for a recorded episode, the path of a trajectory file made in `folder`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is nothing that the pages show.
    """
    if path.is_dir():
        return path
    (file,) = NamedFiles([path]).files()
    if kind_of(file) != "other":
        return path
    try:
        recording = read_recording(file)
    except ValueError as error:
        kinds = "a trajectory, results of eval, or a recorded episode"
        raise ValueError(f"{path} is not {kinds}") from error
    made = Path(mkdtemp(dir=folder)) / path.name
    made.write_bytes(b"".join(trajectory_lines(recording)))
    return made


def read_recording(file: NamedFile) -> Recording:
    """Return the recording in `file`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a recording, or is longer than `LONGEST_LINE` bytes.
    """
    with file.open() as opened:
        content = opened.read(LONGEST_LINE + 1)
    if len(content) > LONGEST_LINE:
        raise ValueError(f"a recording has at most {LONGEST_LINE:,} bytes")
    return Recording.from_json(content.decode("utf-8"))


def trajectory_lines(recording: Recording) -> Iterator[bytes]:
    """Yield the lines of a trajectory file with one run."""
    first, last = recording.observations[0], recording.observations[-1]
    yield as_line({"format": FORMAT, "version": VERSION, "contexts": {}, "settings": {}})
    length = first.context_length
    yield _line(
        "run_started",
        depth=0,
        question=recording.reset.get("task_prompt") or "",
        max_iterations=first.max_iterations,
        contexts=[{"name": "context", "type": "str", "length": length}] if length else [],
    )
    for number, action in enumerate(recording.actions, 1):
        observation = recording.observations[number]
        yield _line(
            "cell_ran",
            turn=number,
            cell=number,
            code=_code(action),
            observation=observation.model_dump(mode="json"),
            seconds=observation.result.execution_time,
        )
    yield _line(
        "run_ended",
        final_answer=last.final_answer,
        # The page of a run without an end would wait for further events.
        stop_reason=last.metadata.get("stop_reason") or "not ended",
        error_kind=last.error_kind,
        reward=last.reward if last.done else None,
        iterations=len(recording.actions),
        seconds=sum(each.result.execution_time for each in recording.observations[1:]),
    )


def _line(kind: str, **fields: Any) -> bytes:
    return as_line({"event": kind, "run": _RUN, **fields})


def _code(action: REPLAction) -> str:
    """Return the code of an action; a comment for an action without code."""
    if action.is_final:
        return f"# submitted without code: {action.final_answer!r}"
    return action.code or "# a reply without code"
