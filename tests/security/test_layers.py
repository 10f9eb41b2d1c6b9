"""Each layer counts: where one is left out, the check of the table that is about it notices.

Sandboxes are started through `without_layer.py`, which leaves one layer out. A missing layer that
the tier's probe requires ends the sandbox itself; a check in the session detects the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from repl_sandbox import IsolationError, Limits, Sandbox, Session
from repl_sandbox.host import zygote
from repl_sandbox.host.isolation import TIERS as PROBED
from repl_sandbox.jail.landlock import kernel_abi
from tests.internals import session_links, worker_pid
from tests.security.without_layer import LACKS
from tests.waiting import LONG, PATIENCE

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
    """Neither init nor the worker is in the process group of another process."""
    links = session_links(session)
    return all(os.getpgid(pid) == os.getsid(pid) == pid for pid in (links.pid, links.worker_pid))


def hides_its_memory(session: Session) -> bool:
    """Return whether root or nobody owns the /proc files of init and the worker: proc(5)."""
    links = session_links(session)
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
held = len(os.listdir("/proc/self/fd")) <= 8
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


VIEW, POWERS, CONFINED = "jail/test_jail_view", "jail/test_jail_powers", "tiers/test_confined"
PUBLIC = ("/tmp", "/var/tmp", "/dev/shm")  # where every user may leave files
ITSELF = "test_layers.py::test_a_missing_layer_is_detected"
# Tier and layer: a test that fails without it, though the probe lets such sandboxes begin.
HELD_BY: Mapping[tuple[str, str], str] = {
    ("jailed", layer): test
    for layer, test in {
        "user namespace": f"{POWERS}.py::test_two_sessions_of_root_are_two_users_outside",
        "pid namespace": f"{VIEW}.py::test_only_the_sessions_own_processes_are_visible",
        "mnt namespace": f"{VIEW}.py::test_every_mount_is_read_only_but_the_private_ones",
        "net namespace": f"{VIEW}.py::test_the_only_interface_is_a_loopback_of_its_own",
        "ipc namespace": f"{VIEW}.py::test_isolation_reports_every_layer_active",
        "uts namespace": f"{VIEW}.py::test_the_host_name_is_hidden",
        "cgroup namespace": (
            "cgroups/test_cgroups.py"
            "::test_init_worker_and_children_are_in_the_group_and_see_nothing_above_it"
        ),
        "root": f"{VIEW}.py::test_nothing_can_be_written_outside_the_private_places",
        "uid": f"{VIEW}.py::test_no_user_of_the_session_is_root_outside",
        "capabilities": f"{VIEW}.py::test_no_capability_is_in_any_set",
        "no_new_privs": f"{VIEW}.py::test_a_filter_is_loaded_and_privileges_cannot_be_gained",
        "seccomp": f"{POWERS}.py::test_a_call_that_would_open_the_jail_is_refused",
        "landlock": (
            "jail/test_landlock.py::test_accesses_allowed_by_permissions_and_mounts_are_refused"
        ),
        "resource limits": f"{VIEW}.py::test_a_resource_limit_is_hard",
        "cgroup": "cgroups/test_cgroups.py::test_the_layer_reports_the_limits_that_the_kernel_has",
        "process group": ITSELF,
        "descriptors": f"{VIEW}.py::test_descriptors_are_the_streams_and_the_worker_s",
        "memory access": ITSELF,
    }.items()
} | {
    ("confined", layer): test
    for layer, test in {
        "uid": (f"{CONFINED}.py::test_code_has_a_user_of_its_own_under_root_and_is_never_root"),
        "capabilities": f"{CONFINED}.py::test_no_capability_and_no_way_to_one",
        "no_new_privs": f"{CONFINED}.py::test_no_capability_and_no_way_to_one",
        "seccomp": f"{CONFINED}.py::test_the_tier_is_reported_as_confined",
        "landlock": f"{CONFINED}.py::test_files_of_the_host_cannot_be_opened",
        "resource limits": (
            f"{CONFINED}.py"
            "::test_resource_limits_are_set_and_processes_only_where_they_are_the_sessions"
        ),
        "process group": ITSELF,
        "descriptors": f"{CONFINED}.py::test_descriptors_are_the_streams_and_two_sockets",
        "memory access": ITSELF,
    }.items()
}


@contextlib.contextmanager
def session_without(
    layer: str, tier: str, python: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """A session of `tier` that lacks `layer`."""
    boot = folder / f"{layer}.py"
    boot.symlink_to(WRAPPER)
    monkeypatch.setattr(zygote, "BOOT", str(boot))
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        with sandbox.session() as session:
            worker = os.pidfd_open(worker_pid(session))
            try:
                yield session
            finally:
                # Without a pid namespace nothing else ends the worker when its init ends.
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
def test_a_missing_layer_is_detected(
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
        # Or it is noticed before, by a mount: of terminals, of an interpreter under /tmp.
        early = seen.startswith(("terminals", "covered mounts"))
        assert early or (seen.startswith("probe") and f"{layer}: " in seen)
    else:
        assert seen == ""


@pytest.mark.parametrize("tier", LAYERS)
def test_a_sandbox_with_all_layers_passes_the_probe(
    tier: str, open_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`without_layer.py`, which starts the other sandboxes, changes nothing by itself."""
    python = None if tier == "jailed" else open_python
    with session_without("nothing", tier, python, tmp_path, monkeypatch) as session:
        assert session.isolation.tier == tier
        assert session.run("6 * 7").value == "42"


def outcome_without(missing: str, test: str, chosen: str) -> int:
    """The exit status of pytest for the `chosen` cases of `test` with sandboxes that lack a layer.

    The tests run in namespaces of their own, with public folders of their own, which end with the
    leftovers and contain the signals of such sessions.
    """
    used = (str(SPECIFICATION), sys.prefix, sys.base_prefix)
    places = [place for place in PUBLIC if not any(path.startswith(place) for path in used)]
    cover = "".join(f"mount -t tmpfs -o mode=1777 none {place} && " for place in places)
    wall = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    wall += ["sh", "-c", f'{cover}exec "$@"', "sh"]
    python = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*wall, *python, f"{Path(__file__).parent}/{test}", "-k", chosen],
        cwd=SPECIFICATION.parents[1],
        env={**os.environ, "REPL_TEST_WITHOUT": missing},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    return done.returncode


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(("tier", "layer"), CASES)
def test_the_named_test_fails_without_the_layer(tier: str, layer: str) -> None:
    if EXCUSED.get(layer):
        pytest.skip("this kernel has none")
    test = HELD_BY[tier, layer]
    chosen = f"{tier} and {layer.split(maxsplit=1)[0]}" if test == ITSELF else "not ordinary"
    if outcome_without("nothing", test, chosen) != pytest.ExitCode.OK:
        pytest.skip(f"{test} does not pass here")
    assert outcome_without(layer, test, chosen) == pytest.ExitCode.TESTS_FAILED


def test_every_layer_of_the_probe_is_in_the_table() -> None:
    for tier, layers in LAYERS.items():
        assert PROBED[tier] <= set(layers)
    assert LACKS.keys() - {"nothing"} == CHECKS.keys()
    assert HELD_BY.keys() == {(tier, layer) for tier in LAYERS for layer in LAYERS[tier]}


def test_the_specification_has_the_table() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8").partition("\n## Layers")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "][2:]
    assert {name: tiers.split(", ") for name, tiers, _, _ in rows} == {
        name: [tier for tier in LAYERS if name in LAYERS[tier]] for name in CHECKS
    }
    for name, _, _, tests in rows:
        held = dict.fromkeys(f"`security/{HELD_BY[t, name]}`" for t in LAYERS if name in LAYERS[t])
        assert tests == "<br>".join(held)
