"""Each layer counts: where one is left out, the check of the table that is about it notices.

Sandboxes are started through `without_layer.py`, which leaves one layer out. What the probe must
see for a tier ends the sandbox itself; of the others a question to the session tells.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from repl_sandbox import IsolationError, Limits, Sandbox, Session
from repl_sandbox.jail.landlock import kernel_abi
from repl_sandbox.session.isolation import TIERS as PROBED
from repl_sandbox.zygote import process
from tests.security.without_layer import LACKS
from tests.waiting import PATIENCE

WRAPPER = Path(__file__).parent / "without_layer.py"
SPECIFICATION = Path(__file__).parents[2] / "docs/specification.md"
LIMITS = Limits(timeout=PATIENCE, open_files=64)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what it lacks is what root starts with")


# ── what is asked where the probe need not see it ────────────────────────────────────────────────


def is_active(name: str) -> Callable[[Session], bool]:
    """Whether the probe sees the layer."""
    return lambda session: (
        name in {layer.name for layer in session.isolation.layers if layer.active}
    )


def says(code: str) -> Callable[[Session], bool]:
    """Whether `code` in the session leaves a true `held`."""

    def held(session: Session) -> bool:
        outcome = session.run(code)
        assert outcome.ok, outcome
        return bool(session.get("held"))

    return held


def has_groups_of_its_own(session: Session) -> bool:
    """Neither init nor the worker is in a process group of anybody else."""
    links = session._core.links
    return all(os.getpgid(pid) == os.getsid(pid) == pid for pid in (links.pid, links.worker_pid))


def hides_its_memory(session: Session) -> bool:
    """What a process hides is root's in /proc, or nobody's: proc(5)."""
    links = session._core.links
    for pid in (links.pid, links.worker_pid):
        uid = int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0])
        if os.stat(f"/proc/{pid}/environ").st_uid == uid != 0:
            return False
    return True


OPENS_TOO_MANY = """
files = []
try:
    while len(files) < 100: files.append(open("/dev/null"))
    held = False
except OSError: held = True
files.clear()
"""
HAS_FEW_DESCRIPTORS = """
import os
held = len(os.listdir("/proc/self/fd")) <= 6
"""

# Layer: what holds as long as it is there. A layer of the probe is asked for by the sandbox itself.
CHECKS: Mapping[str, Callable[[Session], bool]] = {
    **{name: is_active(name) for name in sorted(PROBED["jailed"])},
    "landlock": is_active("landlock"),
    "cgroup": is_active("cgroup"),
    "resource limits": says(OPENS_TOO_MANY),
    "process group": has_groups_of_its_own,
    "descriptors": says(HAS_FEW_DESCRIPTORS),
    "memory access": hides_its_memory,
}
LAYERS = {
    "jailed": list(CHECKS),
    "confined": [
        "uid",
        "capabilities",
        "no_new_privs",
        "seccomp",
        "landlock",
        "resource limits",
        "process group",
        "descriptors",
        "memory access",
    ],
}
EXCUSED = {"landlock": kernel_abi() == 0}
# No session comes up: a later step needs the layer, and says so.
NEEDED_BY = {"no_new_privs": ("Landlock", "seccomp")}


@contextlib.contextmanager
def session_without(
    layer: str, tier: str, python: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """A session of `tier` that lacks `layer`."""
    boot = folder / f"{layer}.py"
    boot.symlink_to(WRAPPER)
    monkeypatch.setattr(process, "_BOOT", str(boot))
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        with sandbox.session() as session:
            worker = os.pidfd_open(session._core.links.worker_pid)
            try:
                yield session
            finally:
                # Without a pid namespace nothing else ends it when its init goes.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker, signal.SIGKILL)
                os.close(worker)


CASES = [
    pytest.param(tier, layer, id=f"{tier}-{layer}") for tier in LAYERS for layer in LAYERS[tier]
]


@pytest.fixture(scope="module")
def whole(open_python: str) -> Iterator[Callable[[str], Sandbox]]:
    """A sandbox of each tier that is asked for, which lacks nothing."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def of(tier: str) -> Sandbox:
            python = None if tier == "jailed" else open_python
            return stack.enter_context(Sandbox(isolation=tier, python=python, limits=LIMITS))

        yield of


@as_root
@pytest.mark.parametrize(("tier", "layer"), CASES)
def test_a_layer_that_is_left_out_is_noticed(
    whole: Callable[[str], Sandbox],
    tier: str,
    layer: str,
    open_python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if EXCUSED.get(layer):
        pytest.skip("this kernel has none")
    with whole(tier).session() as session:
        if layer == "cgroup" and not CHECKS[layer](session):
            pytest.skip("this process may make no groups")
        assert CHECKS[layer](session), f"{layer} is not noticed where it is"
    python = None if tier == "jailed" else open_python
    seen = ""
    try:
        with session_without(layer, tier, python, tmp_path, monkeypatch) as session:
            assert layer not in PROBED[tier], "the sandbox began without what its tier needs"
            assert not CHECKS[layer](session), f"nothing notices that {layer} is not there"
    except IsolationError as error:
        seen = f"{error.step}: {error}"
    if layer in NEEDED_BY:
        assert seen.startswith(NEEDED_BY[layer])
    elif layer in PROBED[tier]:
        # Or it is noticed before: an interpreter under /tmp is mounted, which needs the namespaces.
        early = seen.startswith("covered mounts")
        assert early or (seen.startswith("probe") and f"{layer}: " in seen)
    else:
        assert seen == ""


@pytest.mark.parametrize("tier", LAYERS)
def test_a_sandbox_that_lacks_nothing_is_whole(
    tier: str, open_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts the others changes nothing by itself."""
    python = None if tier == "jailed" else open_python
    with session_without("nothing", tier, python, tmp_path, monkeypatch) as session:
        assert session.isolation.tier == tier
        assert session.run("6 * 7").value == "42"


def test_every_layer_of_the_probe_is_in_the_table() -> None:
    for tier, layers in LAYERS.items():
        assert PROBED[tier] <= set(layers)
    assert LACKS.keys() - {"nothing"} == CHECKS.keys()


def test_the_specification_has_the_table() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8").partition("\n## Layers")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "][2:]
    assert {name: tiers.split(", ") for name, tiers, _ in rows} == {
        name: [tier for tier in LAYERS if name in LAYERS[tier]] for name in CHECKS
    }
