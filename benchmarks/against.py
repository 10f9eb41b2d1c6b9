"""`make bench BENCH_ARGS="--against REV"`: this checkout beside another commit, measured in turn.

Each measure runs in both checkouts, one right after the other, in processes of their own. A figure
is compared by its ratio to its floor, because the floor meets the same state of the machine. A
figure counts as worse only if it is worse in two runs, with disjoint quartiles in both; the second
run has the opposite order, and takes place only where the first one found a figure worse.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from repl_env.cli.tables import FittedTable, Heading

ROOT = Path(__file__).parents[1]
# Source roots of a checkout: they come before those that the interpreter has installed.
_SOURCES = (".", "sandbox", "server")
# A figure of fewer samples has no quartiles. Its value then has to differ by this share, which is
# more than the size of a session swings between two runs.
_MARGIN = 0.05
_USAGE = 2  # status of an older checkout that does not know a measure's name

Ask = Callable[[Path, str], dict[str, "Reading"]]
"""The figures that a checkout has for a measure, by their keys."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of one run: its ratio to its floor. `more_is_better` for rates."""

    name: str
    median: float
    quartiles: tuple[float, float] | None
    more_is_better: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Reading:
        """Take a figure from the `latest.json` of a run."""
        ratio = record["ratio"]
        quartiles = ratio["quartiles"]
        return cls(
            record["name"],
            ratio["median"],
            None if quartiles is None else (quartiles[0], quartiles[1]),
            # Results before this module did not record the unit; names of rates did.
            record.get("unit") == "/s" or "per second" in record["name"],
        )

    def worse_than(self, other: Reading) -> bool:
        """Tell whether the quartiles of both are disjoint, with this one on the worse side."""
        if self.more_is_better:
            return self._high < other._low
        return self._low > other._high

    @property
    def _low(self) -> float:
        return self.quartiles[0] if self.quartiles else self.median * (1 - _MARGIN / 2)

    @property
    def _high(self) -> float:
        return self.quartiles[1] if self.quartiles else self.median * (1 + _MARGIN / 2)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure in both checkouts; `then` is None where the other one does not have it."""

    now: Reading
    then: Reading | None
    worse: bool


def compare(revision: str, measures: Sequence[str]) -> bool:
    """Measure this checkout and `revision`, print a table; whether no figure is worse.

    Raises SystemExit if git does not know the revision.
    """
    console = Console()
    with checkout(revision) as other:
        compared: list[Compared] = []
        for measure in measures:
            with console.status(f"measuring {measure}"):
                compared += in_turn(measure, ROOT, other, ask)
    console.print(_table(compared, revision))
    worse = [each.now.name for each in compared if each.worse]
    console.print(f"Worse in two runs: {', '.join(worse)}" if worse else "No figure is worse.")
    return not worse


def in_turn(measure: str, ours: Path, theirs: Path, ask: Ask) -> list[Compared]:
    """Compare the figures of one measure; a second run decides where the first finds one worse."""
    then, now = ask(theirs, measure), ask(ours, measure)
    suspects = {key for key in now if key in then and now[key].worse_than(then[key])}
    confirmed: set[str] = set()
    if suspects:
        again, before = ask(ours, measure), ask(theirs, measure)
        confirmed = {key for key in suspects if again[key].worse_than(before[key])}
    return [Compared(now[key], then.get(key), key in confirmed) for key in now]


def ask(checkout: Path, measure: str) -> dict[str, Reading]:
    """Run one measure in a checkout; no figures where the checkout does not know the measure."""
    done = subprocess.run(
        [_python(checkout), "-m", "benchmarks", "--only", measure],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _USAGE:
        return {}
    if done.returncode:
        raise SystemExit(f"{measure} failed in {checkout}:\n{done.stderr}")
    results = json.loads((checkout / "benchmarks" / "results" / "latest.json").read_text())
    return {record["key"]: Reading.of(record) for record in results["figures"]}


def _python(checkout: Path) -> str:
    """Return the interpreter of a checkout; the one of the other checkout stands beside it."""
    return sys.executable if checkout == ROOT else str(checkout.parent / "venv" / "bin" / "python")


def _make_python(checkout: Path) -> None:
    """Make an interpreter that has the sources of `checkout`, and copies of our libraries.

    PYTHONPATH would not do: floors are measured by isolated interpreters (`python -I`), and these
    would find the installed sources, which are ours. Copies, because sessions see libraries only
    below the interpreter's own folder.
    """
    folder = checkout.parent / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    shutil.copytree(ours, site, ignore=shutil.ignore_patterns("*.pth"), dirs_exist_ok=True)
    paths = [str(checkout / source) for source in _SOURCES]
    (site / "checkout.pth").write_text("\n".join(paths), encoding="utf-8")


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Check `revision` out into a temporary folder, as a worktree of this repository."""
    with tempfile.TemporaryDirectory(prefix="repl-env-against-") as folder:
        tree = Path(folder) / "checkout"
        added = _git("worktree", "add", "--detach", str(tree), revision)
        if added.returncode:
            raise SystemExit(f"--against {revision}: {added.stderr.strip()}")
        try:
            _make_python(tree)
            _compile(tree)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _compile(tree: Path) -> None:
    """Build the native library of a checkout, unless it is from before there was one."""
    if not (tree / "sandbox" / "repl_sandbox" / "native" / "build.py").exists():
        return
    done = subprocess.run([_python(tree), "-m", "repl_sandbox.native.build"], cwd=tree, check=False)
    if done.returncode:
        raise SystemExit(f"the native library of {tree} cannot be built")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _table(compared: Sequence[Compared], revision: str) -> FittedTable:
    table = FittedTable(
        *(
            Heading(column, "right" if column else "left")
            for column in ("", revision, "this", "this / other", "worse")
        ),
        title=f"this checkout against {revision}",
        note="Ratios to the floor of the same run, quartiles in brackets.",
    )
    for each in compared:
        then = each.then
        table.add_row(
            each.now.name,
            "not measured there" if then is None else _shown(then),
            _shown(each.now),
            "" if then is None else f"{each.now.median / then.median:.2f}",
            Text("YES" if each.worse else "", style="red"),
        )
    return table


def _shown(reading: Reading) -> str:
    if reading.quartiles is None:
        return f"{reading.median:.2f}"
    low, high = reading.quartiles
    return f"{reading.median:.2f} [{low:.2f}, {high:.2f}]"
