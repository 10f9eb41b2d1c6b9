"""A learning curve: one line in the terminal for each update, and a picture at the end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BAR = 40


@dataclass(slots=True)
class Curve:
    """The rewards of a run by update, printed as they come.

    `before` and `after` are the rewards on held-out tasks around the updates.
    """

    title: str
    goal: float
    rewards: list[float] = field(default_factory=list)
    before: float | None = None
    after: float | None = None
    begun: float = field(default_factory=time.monotonic)

    def add(self, reward: float) -> None:
        """Add the mean reward of one update, and print it."""
        self.rewards.append(reward)
        bar = "█" * round(_BAR * max(0.0, min(reward, 1.0)))
        seconds = time.monotonic() - self.begun
        print(
            f"{len(self.rewards):>4} {seconds:>6.0f} s {reward:>6.3f} |{bar:<{_BAR}}|", flush=True
        )

    def save(self, stem: Path, **facts: Any) -> None:
        """Write `stem`.json, with `facts` beside the numbers, and `stem`.png."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        numbers = {"rewards": self.rewards, "before": self.before, "after": self.after}
        text = json.dumps({"title": self.title, **facts, **numbers}, indent=1)
        stem.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        self._draw(stem.with_suffix(".png"))

    def _draw(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.2), dpi=100, layout="constrained")
        axes = figure.add_subplot(
            title=self.title, xlabel="update", ylabel="reward", ylim=(0, 1.05)
        )
        axes.plot(range(1, len(self.rewards) + 1), self.rewards, label="sampled, training tasks")
        for place, reward, name in (
            (0, self.before, "held out, before"),
            (len(self.rewards), self.after, "held out, after"),
        ):
            if reward is not None:
                axes.plot([place], [reward], "o", label=f"{name}: {reward:.2f}")
        axes.axhline(self.goal, linestyle=":", color="grey")
        axes.legend(loc="lower right")
        figure.savefig(path)
