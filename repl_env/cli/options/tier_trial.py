"""`Trial`: whether a session of one tier works on this system, found by starting one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Trial:
    """A session that was started to see: its layers, or the step that failed."""

    tier: str
    works: bool
    layers: tuple[dict[str, Any], ...] = ()
    step: str = ""
    message: str = ""
    remedy: str = ""

    def has(self, layer: str) -> bool:
        """Return whether the session has `layer`."""
        return any(each["name"] == layer and each["active"] for each in self.layers)


def try_tier(tier: str, **arguments: str | None) -> Trial:
    """Start a sandbox of `tier`, open a session in it and ask what holds it."""
    try:
        from repl_sandbox import Sandbox
        from repl_sandbox.errors import IsolationError
    except (ImportError, OSError) as error:
        # The engine's host side loads only where its system calls exist.
        return Trial(tier, False, step="import", message=str(error))
    try:
        settings: Any = {"isolation": tier, **arguments}
        with Sandbox(**settings) as sandbox, sandbox.session() as session:
            answered = session.run("1 + 1").value == "2"
            isolation = session.isolation
    except IsolationError as error:
        return Trial(tier, False, step=error.step, message=str(error), remedy=error.remedy)
    except Exception as error:  # noqa: BLE001 (a diagnosis reports what went wrong, whatever it is)
        return Trial(tier, False, step="session", message=f"{type(error).__name__}: {error}")
    layers = tuple(asdict(layer) for layer in isolation.layers)
    if not answered:
        return Trial(tier, False, layers, "session", "the session does not answer `1 + 1`")
    return Trial(tier, isolation.tier == tier, layers)
