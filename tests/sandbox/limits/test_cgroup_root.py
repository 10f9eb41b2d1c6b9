"""Directories where cgroups can be made, read from recorded files of systems.

These tests cover the parsing. tests/security/cgroups/test_cgroups.py covers the kernel, on the
machine's own hierarchy.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repl_sandbox.host import cgroup_files
from repl_sandbox.host.cgroup_files import LEAF, CgroupRoot, CgroupUnavailable, find

V1 = "{n} 31 0:{n} {root} {point} rw,relatime - cgroup cgroup {mode},{name}\n"
V2 = "41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 {mode},nsdelegate\n"
TMPFS = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"


class System:
    """A made-up /proc/self and the hierarchies that it names."""

    def __init__(self, base: Path) -> None:
        self.proc = base / "proc"
        self.proc.mkdir()
        self.base = base
        self.mounts = TMPFS
        self.groups = "1:name=systemd:/\n"

    def version_1(
        self, name: str, group: str, *, root: str = "/", seen: str | None = None, mode: str = "rw"
    ) -> Path:
        point = self.base / name
        folder = point / (seen if seen is not None else group.lstrip("/"))
        folder.mkdir(parents=True)
        self.mounts += V1.format(n=len(self.mounts), root=root, point=point, mode=mode, name=name)
        self.groups += f"5:{name}:{group}\n"
        return folder

    def version_2(
        self,
        group: str,
        *,
        root: str = "/",
        seen: str | None = None,
        mode: str = "rw",
        controllers: str = "cpu memory pids",
        given_on: str = "",
        processes: str = "",
        top: bool = False,
    ) -> Path:
        point = self.base / "unified"
        folder = point / (seen if seen is not None else group.lstrip("/"))
        folder.mkdir(parents=True, exist_ok=True)
        self.mounts += V2.format(root=root, point=point, mode=mode)
        self.groups += f"0::{group}\n"
        holder = folder.parent if folder.name == LEAF else folder
        (holder / "cgroup.controllers").write_text(f"{controllers}\n")
        (holder / "cgroup.subtree_control").write_text(f"{given_on}\n")
        (holder / "cgroup.procs").write_text(processes)
        if not top:
            (holder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        return holder

    def find(self) -> CgroupRoot | CgroupUnavailable:
        (self.proc / "mountinfo").write_text(self.mounts)
        (self.proc / "cgroup").write_text(self.groups)
        return find(str(self.proc))


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_version_1_has_two_folders(system: System) -> None:
    memory = system.version_1("memory", "/jobs/7")
    pids = system.version_1("pids", "/")
    assert system.find() == CgroupRoot(1, (str(memory), str(pids)))


def test_a_container_sees_its_group_at_the_top(system: System) -> None:
    memory = system.version_1("memory", "/docker/1f/x", root="/docker/1f", seen="x")
    pids = system.version_1("pids", "/docker/1f", root="/docker/1f", seen="")
    assert system.find() == CgroupRoot(1, (str(memory), str(pids)))


@pytest.mark.parametrize("root", ["/docker/2e", "/docker/1f/y"])
def test_a_group_outside_of_the_mount_is_unavailable(system: System, root: str) -> None:
    system.version_1("memory", "/docker/1f", root=root)
    system.version_1("pids", "/")
    assert isinstance(system.find(), CgroupUnavailable)


def test_a_read_only_hierarchy_is_unavailable_with_a_remedy(system: System) -> None:
    system.version_1("memory", "/", mode="ro")
    system.version_1("pids", "/")
    found = system.find()
    assert isinstance(found, CgroupUnavailable)
    assert "not writable" in found.reason and "writable" in found.remedy


def test_the_reason_is_that_of_the_version_that_has_the_controllers(system: System) -> None:
    """Machines of systemd's hybrid layout have both, and version 2 has none of them."""
    system.version_2("/", controllers="", top=True)
    system.version_1("memory", "/", mode="ro")
    system.version_1("pids", "/")
    found = system.find()
    assert isinstance(found, CgroupUnavailable)
    assert "version 1, memory" in found.reason and "--cgroupns=private" in found.remedy


def test_a_hierarchy_of_another_owner_is_unavailable_with_a_remedy(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.version_1("memory", "/")
    system.version_1("pids", "/")
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = system.find()
    assert isinstance(found, CgroupUnavailable)
    assert "not writable" in found.reason and "Have root give this user" in found.remedy


def test_a_single_controller_is_not_enough(system: System) -> None:
    system.version_1("memory", "/")
    assert isinstance(system.find(), CgroupUnavailable)


def test_version_2_with_delegated_controllers_is_used_unchanged(system: System) -> None:
    folder = system.version_2("/app", given_on="memory pids", processes="1\n")
    assert system.find() == CgroupRoot(2, (str(folder),), weighing=str(folder))


def test_the_topmost_group_may_have_processes(system: System) -> None:
    folder = system.version_2("/", processes="1\n2\n", top=True)
    assert system.find() == CgroupRoot(2, (str(folder),), weighing=str(folder))


def test_version_1_is_used_where_version_2_has_no_controllers(system: System) -> None:
    system.version_2("/", controllers="", top=True)
    memory, pids = system.version_1("memory", "/"), system.version_1("pids", "/")
    assert system.find() == CgroupRoot(1, (str(memory), str(pids)))


def test_a_group_with_foreign_processes_is_not_divided(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.version_2("/system.slice/ours.service", processes=f"{os.getpid()}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = system.find()
    assert isinstance(found, CgroupUnavailable)
    assert "Delegate=yes" in found.remedy


@pytest.mark.parametrize(
    ("processes", "crowded"),
    [([os.getpid()], True), ([os.getpid(), 1], None), ([], False)],
    ids=["ours", "and others", "none"],
)
def test_a_delegated_group_with_own_processes_alone_is_divided(
    system: System, monkeypatch: pytest.MonkeyPatch, processes: list[int], crowded: bool | None
) -> None:
    lines = "".join(f"{pid}\n" for pid in processes)
    folder = system.version_2("/user.slice/run-1.scope", processes=lines)
    marks = {"user.delegate": b"1"}
    monkeypatch.setattr(os, "getxattr", lambda path, name: _mark(marks, name))
    at = str(folder)
    expected = CgroupRoot(2, (at,), crowded, weighing=at) if crowded is not None else None
    found = system.find()
    assert found == expected if expected else isinstance(found, CgroupUnavailable)


def test_a_container_with_own_processes_alone_is_divided(system: System) -> None:
    folder = system.version_2("/", root="/", seen="", processes=f"{os.getpid()}\n")
    assert system.find() == CgroupRoot(2, (str(folder),), needs_leaf=True, weighing=str(folder))


def _mark(marks: dict[str, bytes], name: str) -> bytes:
    if name not in marks:
        raise OSError(61, "No data available")
    return marks[name]


def test_a_process_in_the_own_leaf_finds_the_group_above(system: System) -> None:
    folder = system.version_2(f"/run-1.scope/{LEAF}", given_on="memory pids")
    assert system.find() == CgroupRoot(2, (str(folder),), weighing=str(folder))


def test_cpu_weights_are_set_where_the_controller_exists(
    system: System,
) -> None:
    memory, pids = system.version_1("memory", "/"), system.version_1("pids", "/")
    cpu = system.version_1("cpu,cpuacct", "/jobs/7")
    assert system.find() == CgroupRoot(1, (str(memory), str(pids)), weighing=str(cpu))


def test_a_root_without_the_cpu_controller_is_accepted(system: System) -> None:
    folder = system.version_2("/app", controllers="memory pids", given_on="memory pids")
    assert system.find() == CgroupRoot(2, (str(folder),))


def test_a_system_without_cgroups_gets_a_remedy(system: System) -> None:
    found = system.find()
    assert isinstance(found, CgroupUnavailable)
    assert found.remedy


def test_octal_numbers_in_paths_are_characters(tmp_path: Path) -> None:
    base = tmp_path / "a b"
    base.mkdir()
    system = System(base)
    folder = system.version_2("/", given_on="memory pids", top=True)
    system.mounts = system.mounts.replace("a b", r"a\040b")
    assert system.find() == CgroupRoot(2, (str(folder),), weighing=str(folder))


# ── formats ───────────────────────────────────────────────────────────────────────────────────

OOM_CONTROL = b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
EVENTS = b"low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"


@pytest.mark.parametrize("data", [OOM_CONTROL, EVENTS])
def test_only_the_named_row_is_counted(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "events").write_bytes(data)
    assert cgroup_files.read_rows(f"{tmp_path}/events", b"oom_kill") == 3


@pytest.mark.parametrize(("version", "held"), [(1, 30), (2, 57)])
def test_held_memory_is_private_and_shared_pages(tmp_path: Path, version: int, held: int) -> None:
    stat = tmp_path / "memory.stat"
    stat.write_text("cache 900\nrss 10\nrss_huge 10\nanon 30\nfile 900\npagetables 7\nshmem 20\n")
    assert cgroup_files.read_rows(str(stat), *cgroup_files.VERSIONS[version].counted) == held


def test_no_limit_is_distinguished_from_a_number(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "pids.max").write_text("66\n")
    assert cgroup_files.memory_limits((str(tmp_path),), cgroup_files.VERSION_2) == (-1, 66)


@pytest.mark.parametrize(
    ("version", "before", "expected"),  # a file that is longer keeps its end, unlike the kernel's
    [
        (1, {"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9"}, ["64", "64"]),
        (1, {"memory.limit_in_bytes": "9", "memory.swappiness": "60"}, ["64", "0"]),
        (2, {"memory.max": "max", "memory.swap.max": "max"}, ["64", "0"]),
        (2, {"memory.max": "max"}, ["64"]),
    ],
    ids=["v1", "v1 without swap accounting", "v2", "v2 without swap accounting"],
)
def test_a_limit_of_memory_leaves_no_swap(
    tmp_path: Path, version: int, before: dict[str, str], expected: list[str]
) -> None:
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    cgroup_files.limit_memory(str(tmp_path), cgroup_files.VERSIONS[version], 64)
    written = [(tmp_path / name).read_text() for name in before]
    assert [text[: len(e)] for text, e in zip(written, expected, strict=True)] == expected


def test_a_limit_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"memory\.max"):
        cgroup_files.limit_memory(str(tmp_path), cgroup_files.VERSION_2, 64)
