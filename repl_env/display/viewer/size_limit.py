"""`fitted`: data of an exported page that keeps to a size, without its longest outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

# Characters that a text keeps, tried in this order: first outputs are cut, then all texts.
_LEVELS: Final = (65_536, 16_384, 4_096, 1_024, 256)


def fitted(data: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return `data` with texts cut, and with a note that says so, as JSON of at most `limit` bytes.

    Raises:
        ValueError: even short texts are too many.
    """
    if size_of(data) <= limit:
        return data
    for outputs, texts in _steps():
        files = [_cut_file(file, outputs, texts) for file in data["files"]]
        longest = texts or outputs
        what = "Outputs" if texts is None else "Texts"
        note = f"{what} of more than {longest:,} characters, and larger figures, are cut here."
        smaller = data | {"files": files, "notes": [*data["notes"], note]}
        if size_of(smaller) <= limit:
            return smaller
    raise ValueError(f"the page has {size_of(smaller):,} bytes even without long texts")


def size_of(data: Any) -> int:
    """Return the number of bytes of `data` in a page."""
    return len(as_script_data(data).encode("utf-8"))


def as_script_data(data: Any) -> str:
    """Return JSON that ends no `<script>`, begins no comment, and is valid UTF-8."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as a model may return: exact as an escape
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


# These characters occur inside of JSON texts alone, where an escape means the same. A carriage
# return is an escape already.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def _steps() -> Iterator[tuple[int, int | None]]:
    yield from ((level, None) for level in _LEVELS)
    yield from ((_LEVELS[-1], level) for level in _LEVELS)


def _cut_file(file: dict[str, Any], outputs: int, texts: int | None) -> dict[str, Any]:
    if "events" not in file:
        return file
    return file | {"events": [_cut_event(event, outputs, texts) for event in file["events"]]}


def _cut_event(event: Any, outputs: int, texts: int | None) -> Any:
    if not isinstance(event, dict):
        return event
    observation = event.get("observation")
    if isinstance(observation, dict) and isinstance(observation.get("result"), dict):
        result = _cut_result(observation["result"], outputs)
        event = event | {"observation": observation | {"result": result}}
    return event if texts is None else _cut(event, texts)


def _cut_result(result: dict[str, Any], longest: int) -> dict[str, Any]:
    figures = result.get("figures")
    if not isinstance(figures, list):
        return _cut(result, longest)  # type: ignore[no-any-return]  # a dict stays one
    kept = [figure for figure in figures if len(str(figure)) <= longest]
    smaller: dict[str, Any] = _cut({**result, "figures": []}, longest)
    return smaller | {"figures": kept, "figures_left_out": len(figures) - len(kept)}


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}\n[{len(value) - longest:,} characters left out]"
    if isinstance(value, dict):
        return {name: _cut(item, longest) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    return value
