"""Templates in containers: `ContainerLauncher`, by the API of Docker, which Podman has too.

Here are the container's user, rights, labels and socket, the daemon's refusals as errors that name
a remedy, and containers that outlived the process that made them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import docker.errors
import requests.exceptions
from docker.client import DockerClient
from docker.models.containers import Container
from docker.types import LogConfig, Mount, Ulimit
from docker.utils import parse_repository_tag

from ..errors import IsolationError, SandboxError
from ..jail.users import SLOTS, own_id
from ..protocol.control import Lifeline
from ..types import PACKAGE_DIR
from . import zygote
from .container import ContainerLimits, ContainerSettings, has_own_kernel
from .docker_transport import MountedSocketTransport, StreamTransport
from .links import IsolationBaseline
from .proc import began

# The profile of a container whose sessions are jailed inside: added rights, and calls still
# refused.
#
# The container engine's filter forbids the namespaces and mounts that a jail consists of, and its
# masks over /proc forbid a /proc for each session. Instead: a filter that refuses what no
# container needs, and an unmasked /proc, whose files belong to another user.

# By the names of `libseccomp`: the calls that the engine's default filter refuses to a container
# without capabilities, except for namespaces, mounts and the hostname.
_REFUSED: Final = (
    *("acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module"),
    *("delete_module", "fanotify_init", "finit_module", "get_kernel_syms", "get_mempolicy"),
    *("init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl"),
    *("kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "move_pages"),
    *("nfsservctl", "open_by_handle_at", "perf_event_open", "process_vm_readv"),
    *("process_vm_writev", "ptrace", "query_module", "quotactl", "reboot", "request_key"),
    *("set_mempolicy", "settimeofday", "stime", "swapoff", "swapon", "syslog", "sysfs"),
    *("_sysctl", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old"),
)
_EPERM: Final = 1


def security_options() -> list[str]:
    """The security options of the container: the filter, and no AppArmor profile, which forbids
    mounts.
    """
    rules = [{"names": list(_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    return [f"seccomp={json.dumps(profile)}", "apparmor=unconfined"]


# Part of the daemon's configuration of a container, for which the `docker` package has no argument.
UNCOVERED: Final[dict[str, Any]] = {"MaskedPaths": [], "ReadonlyPaths": []}


# Labels of containers: the process that made the container, and whether it still lives.

# One label, because a daemon can filter by it.
OWNER = "repl-env.owner"


def labels_of_this_process() -> dict[str, str]:
    """The labels of a container that this process makes."""
    pid = os.getpid()
    return {OWNER: f"{_system()} {pid} {began(pid)}"}


def is_left_container(labels: Mapping[str, str]) -> bool:
    """Return whether the process that made a container is gone.

    Processes in other pid namespaces are unknown, so their containers do not count as orphaned.
    """
    system, _, rest = labels.get(OWNER, "").partition(" ")
    numbers = rest.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return False
    boot, _, namespace = system.partition("/")
    own_boot, _, own_namespace = _system().partition("/")
    if boot != own_boot:
        return True
    pid, then = map(int, numbers)
    return namespace == own_namespace and began(pid) != then


def _system() -> str:
    """The boot id of the system, and the pid namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"


# The user of a container, its limits, and whether it can read this package.

# The number of users that a daemon maps for its containers.
_MAPPED_USERS = range(20_000, 60_000)
# Open files of the template; processes of its user, which the container limits as well.
_LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1 << 20),
    "nproc": (resource.RLIMIT_NPROC, 1 << 15),
}


def container_user(options: Sequence[str]) -> str:
    """The container's user and group: this process's own, or nobody's if that is root."""
    if os.geteuid() != 0:
        return f"{os.geteuid()}:{os.getegid()}"
    if any("userns" in option or "rootless" in option for option in options):
        number = secrets.choice(_MAPPED_USERS)
    else:
        number = own_id(secrets.randbelow(SLOTS))
    return f"{number}:{number}"


def user_limits() -> Iterator[tuple[str, int]]:
    """At most this process's own limits: the engine's may be more than it can grant."""
    for name, (number, enough) in _LIMITS.items():
        _, hard = resource.getrlimit(number)
        yield name, enough if hard == resource.RLIM_INFINITY else min(hard, enough)


def check_readable() -> None:
    """Raise IsolationError if a user who owns nothing cannot read this package."""
    for path, needed in ((PACKAGE_DIR, 0o005), (f"{PACKAGE_DIR}/zygote/boot.py", 0o004)):
        if os.stat(path).st_mode & needed != needed:
            raise IsolationError(
                "container",
                "package",
                f"{path} cannot be read by the container's user",
                f"chmod -R o+rX {PACKAGE_DIR}",
            )


# The daemon's refusals as errors that name a remedy.

_LOGIN = ("pull access denied", "unauthorized", "no basic auth")


def refusal(image: str, answer: str) -> SandboxError:
    """Return the error for `answer`, the daemon's, about a container of `image`."""
    lower = answer.lower()
    if "no space left on device" in lower:
        return SandboxError(f"the daemon's disk is full: {answer}")
    if any(each in lower for each in _LOGIN):
        return SandboxError(
            f"image {image}: the registry requires a login (docker login), or "
            f"has no such image: {answer}"
        )
    if "bind source path does not exist" in lower:
        return SandboxError(
            "the daemon does not see this process's files, as where a service has its own /tmp "
            f"(set TMPDIR to a directory that both see): {answer}"
        )
    if "executable file not found" in lower or "no such file or directory" in lower:
        return SandboxError(
            f"image {image} has no such program, or lacks what is to be mounted; python= names the "
            f"image's interpreter: {answer}"
        )
    return SandboxError(f"image {image}: the daemon refuses: {answer}")


# The daemon's socket: its path, and whether this user may connect.

_USUAL = "unix:///var/run/docker.sock"
_CONNECT_SECONDS = 5.0


def find_daemon() -> str:
    """Return the path of the socket that DOCKER_HOST names, else of Docker's usual one.

    Raises:
        IsolationError: nothing answers there, or this user may not connect.
    """
    address = urlsplit(os.environ.get("DOCKER_HOST") or _USUAL)
    if address.scheme not in ("unix", "http+unix"):
        raise _error(
            f"DOCKER_HOST is {address.geturl()}, and the daemon must be on this system",
            "Set DOCKER_HOST to the daemon's socket: unix:///path",
        )
    path = address.netloc + address.path
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(_CONNECT_SECONDS)
            trial.connect(path)
    except PermissionError as error:
        raise _error(
            f"this user may not use its socket {path}",
            "Run as a user of the socket's group, usually docker, which is as good as root",
        ) from error
    except OSError as error:
        raise _error(
            f"none answers at {path}: {error.strerror or error}",
            "Start Docker, or set DOCKER_HOST to the socket of one that runs, or of Podman",
        ) from error
    return path


def _error(message: str, remedy: str) -> IsolationError:
    return IsolationError("container", "daemon", message, remedy)


# `ContainerLauncher`: templates in containers, by the API of Docker and the `docker` package;
# Podman has the same API.
#
# A container adds isolation around the template and its sessions. With a runtime that shares this
# system's kernel the zygote connects to a socket that is mounted into the container
# (`MountedSocketTransport`); with a runtime that has a kernel of its own all data goes through
# the container's standard input and output (`StreamTransport`). The daemon starts the container
# and removes it.

TIER = "container"
# The path of the package inside: no image is likely to have it.
_MOUNTED = "/opt/repl-env/repl_sandbox"
_PLACE = "/tmp"
_PYTHON = "python3"
# Docker 19.03: the oldest API with every feature in use here.
_MIN_API = (1, 40)
_SECONDS = 60.0
_START_SECONDS = 60.0
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class ContainerLauncher:
    """The launcher of a zygote in a container of its own; see `ZygoteLauncher`.

    Raises:
        IsolationError: this user can reach no daemon that can start such containers.
    """

    def __init__(self, settings: ContainerSettings) -> None:
        self._settings, self._python = settings, settings.python or _PYTHON
        self.session_root = _PLACE if settings.inside != "jailed" else ""
        self._client = connect()
        # the directory for the sessions' directories, unless root is in the container
        self._scratch = ""
        self._transport: MountedSocketTransport | StreamTransport
        self._last_output = "it wrote nothing"

    def start(self, hash_seed: int | None) -> tuple[Lifeline, zygote.ZygoteProcess]:
        """As of `ZygoteLauncher`."""
        with ExitStack() as undo, translated(self._settings.image):
            undo.callback(self._client.close)
            facts = self._client.info()
            self._check_daemon(facts)
            self._check_image(facts)
            memory = self._memory(facts)
            streams = has_own_kernel(self._settings.runtime)
            self._transport = StreamTransport(memory) if streams else MountedSocketTransport(undo)
            if os.geteuid() != 0 and not streams:
                self._scratch = tempfile.mkdtemp(prefix="repl-env-container-")
                undo.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            container = self._create(facts, memory, hash_seed)
            undo.callback(_remove, container)
            self._transport.attach(container, undo)
            container.start()
            lifeline, child = self._meet(container, undo)
            undo.pop_all()
            self._transport.connected()
        return lifeline, child

    def start_error(self, child: zygote.ZygoteProcess, preload: Sequence[str]) -> SandboxError:
        """As of `ZygoteLauncher`."""
        modules = f" (preload: {', '.join(preload)})" if preload else ""
        return SandboxError(
            f"the container of image {self._settings.image} ended before its template was ready"
            f"{modules}: {self._last_output}"
        )

    def baseline(self, child: zygote.ZygoteProcess) -> IsolationBaseline:
        """As of `ZygoteLauncher`."""
        baseline = self._transport.baseline()
        assert baseline.container is not None
        container = replace(baseline.container, one=self._settings.per_session)
        return IsolationBaseline(
            baseline.template, container, baseline.query if baseline.is_remote else None
        )

    def host_path(self, path: str) -> str:
        """As of `ZygoteLauncher`."""
        if self._scratch:
            return self._scratch + path.removeprefix(_PLACE)
        return self._transport.host_path(path)

    def _check_daemon(self, facts: dict[str, Any]) -> None:
        if facts.get("OSType", "linux") != "linux":
            raise IsolationError(TIER, "daemon", f"its containers run {facts['OSType']}, not Linux")
        runtime, known = self._settings.runtime, facts.get("Runtimes") or {}
        if runtime is not None and known and runtime not in known:
            raise IsolationError(
                TIER,
                "runtime",
                f"the daemon has no runtime {runtime!r}; it has {', '.join(sorted(known))}",
            )

    def _check_image(self, facts: dict[str, Any]) -> None:
        """Have the daemon pull an image that it lacks, and check the image's architecture."""
        name = self._settings.image
        try:
            image = self._client.images.get(name)
        except docker.errors.ImageNotFound:
            self._pull(name)
            image = self._client.images.get(name)
        found = image.attrs.get("Architecture", ""), image.attrs.get("Os", "linux")
        machine = _MACHINES.get(found[0], found[0])
        if found[1] != "linux" or (machine and machine != platform.machine()):
            raise SandboxError(
                f"image {name} is for {found[1]} on {found[0]}, and this machine is Linux on "
                f"{platform.machine()}"
            )

    def _pull(self, name: str) -> None:
        """Have the daemon pull an image; raise the error that ends its progress report."""
        repository, tag = parse_repository_tag(name)
        for progress in self._client.api.pull(
            repository, tag or "latest", stream=True, decode=True
        ):
            if "error" in progress:
                raise refusal(name, str(progress["error"]))

    @property
    def _limits(self) -> ContainerLimits:
        return self._settings.limits or ContainerLimits()

    def _memory(self, facts: dict[str, Any]) -> int:
        """The memory limit of the container in bytes."""
        return int(self._limits.memory or int(facts["MemTotal"]) * 3 // 4)

    def _create(self, facts: dict[str, Any], memory: int, hash_seed: int | None) -> Container:
        settings, (flags, seeded) = self._settings, zygote.flags_of(hash_seed)
        transport = self._transport
        interposed = zygote.interposed(self._tier_inside, _MOUNTED)
        created = self._client.api.create_container(
            settings.image,
            [*flags, f"{_MOUNTED}/zygote/boot.py", transport.argument, self._tier_inside],
            entrypoint=[self._python],
            environment={**zygote.ENVIRONMENT, **interposed, **seeded},
            user=container_user(facts.get("SecurityOptions") or ()),
            working_dir="/",
            hostname="sandbox",
            labels=labels_of_this_process(),
            host_config=self._host_config(facts, memory),
            runtime=settings.runtime,
            stdin_open=transport.takes_input,
            stop_signal="SIGKILL",  # the first process of a container ignores other signals
            healthcheck={"test": ["NONE"]},
        )
        return self._client.containers.get(created["Id"])

    def _host_config(self, facts: dict[str, Any], memory: int) -> dict[str, Any]:
        """Return the isolation and the limits of the container."""
        settings, limits, transport = self._settings, self._limits, self._transport
        shown = {**transport.mounts, _MOUNTED: PACKAGE_DIR, **settings.mounts}
        mounts = [_bound(inside, source) for inside, source in shown.items()]
        if self._scratch:
            mounts.append(_bound(_PLACE, self._scratch, read_only=False))
        else:
            check_readable()
        scratch = {} if self._scratch else {_PLACE: "rw,exec,nosuid,nodev,mode=1777"}
        jailed = settings.inside == "jailed"
        config: dict[str, Any] = self._client.api.create_host_config(
            mounts=mounts,
            tmpfs=scratch,
            cap_drop=["ALL"],
            security_opt=[
                "no-new-privileges",
                *(security_options() if jailed else ()),
            ],
            network_mode="none",
            read_only=True,
            ipc_mode="private",
            pids_limit=limits.processes,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int((limits.cpus or int(facts["NCPU"])) * 1_000_000_000),
            ulimits=[Ulimit(name=name, soft=limit, hard=limit) for name, limit in user_limits()],
            runtime=settings.runtime,
            auto_remove=True,
            init=False,
            log_config=LogConfig(type="none", config={}),
        )
        if jailed:
            config.update(UNCOVERED)
        return config

    @property
    def _tier_inside(self) -> str:
        """ "confined" unless requested: the container's profile denies what a nested jail needs."""
        if self._settings.inside == "jailed":
            return "jailed"
        return "alone" if self._settings.per_session else "confined"

    def _meet(self, container: Container, undo: ExitStack) -> tuple[Lifeline, zygote.ZygoteProcess]:
        image = self._settings.image
        try:
            met = self._transport.meet(
                container, _START_SECONDS, lambda: self._forget(container), undo
            )
        except TimeoutError:
            raise SandboxError(
                f"nothing in the container of image {image} connected within {_START_SECONDS:.0f} s"
            ) from None
        if met is None:
            raise SandboxError(
                f"python: {self._python} in image {image} ended before it connected: "
                f"{self._last_lines()}"
            )
        return met

    def _last_lines(self) -> str:
        """The last lines that the container, which ends or has ended, wrote since it started."""
        lines = self._transport.output().decode("utf-8", "replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:])[-500:] or self._last_output

    def _forget(self, container: Container) -> None:
        """Note that the zygote has ended, and the container with it."""
        self._last_output = self._last_lines()
        _remove(container)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._client.close()


def connect() -> DockerClient:
    """A client of the daemon that DOCKER_HOST names, else of the one at Docker's usual socket.

    Raises:
        IsolationError: no daemon answers, this user has no permission, or the daemon is too old.
    """
    path = find_daemon()
    try:
        client = DockerClient(f"unix://{path}", version="auto", timeout=int(_SECONDS))
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise IsolationError(TIER, "daemon", f"{path}: {error}") from error
    version = client.api.api_version
    if tuple(map(int, version.split("."))) < _MIN_API:
        client.close()
        raise IsolationError(
            TIER, "daemon", f"it has version {version} of the API", "Use Docker 19.03 or newer"
        )
    return client


@contextmanager
def translated(image: str = "") -> Iterator[None]:
    """Translate errors of the daemon, and its end, into errors of this package."""
    try:
        yield
    except docker.errors.APIError as error:
        message = " ".join(str(error.explanation or error).split())
        raise refusal(image, message) from error
    except docker.errors.DockerException as error:
        raise SandboxError(f"container of image {image}: {error}") from error
    except requests.exceptions.RequestException as error:
        raise IsolationError(TIER, "daemon", f"it ended, or does not answer: {error}") from error
    except OSError as error:
        raise SandboxError(f"container of image {image}: {error}") from error


def _bound(inside: str, source: str, *, read_only: bool = True) -> Mount:
    return Mount(inside, source, type="bind", read_only=read_only)


def _remove(container: Container) -> None:
    """Remove a container, and wait for its end while the daemon answers."""
    with suppress(docker.errors.APIError, requests.exceptions.RequestException):
        try:
            container.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code != 409:  # the daemon removes it already
                raise
            container.wait(condition="removed", timeout=int(_SECONDS))


# Containers that outlived the process that made them, as after a crash of the daemon.


def remove() -> list[str]:
    """Remove such containers; return their names.

    Raises:
        SandboxError: no daemon answers, or the daemon refuses.
    """
    client = connect()
    try:
        with translated():
            found = client.containers.list(all=True, filters={"label": OWNER})
            orphans = [each for each in found if is_left_container(each.labels)]
            for container in orphans:
                container.remove(force=True, v=True)
            return [str(container.name) for container in orphans]
    finally:
        client.close()
