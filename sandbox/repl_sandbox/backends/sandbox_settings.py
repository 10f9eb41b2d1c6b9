"""`SandboxSettings`: the checked arguments of one `Sandbox`, which its forks with objects share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Unpack

from .. import backends
from ..errors import CheckpointError
from ..language_policy import Policy
from ..session_limits import Limits
from . import container_settings, sandbox_arguments
from .container_settings import ContainerSettings, has_own_kernel
from .isolation_tiers import acceptable
from .sandbox_arguments import Grouping, SandboxArguments

if TYPE_CHECKING:
    from ..protocol.checkpoint_manifest import Checkpoint
    from ..zygote.client.zygote_process import ZygoteLauncher


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """`tiers`: those to try, the strongest first. `snapshots`: as of `ResourceBudget`.

    `container`: None for sessions outside of a container. The other fields are arguments of
    `Sandbox`; `policy` is None if it forbids nothing.
    """

    tiers: Sequence[str]
    python: str | None
    preload: Sequence[str]
    mounts: Mapping[str, str]
    limits: Limits
    policy: Policy | None
    ready: int
    max_sessions: int | None
    cgroup: Grouping
    snapshots: int
    branches: int
    hash_seed: int | None
    fair_share: bool
    container: ContainerSettings | None

    @classmethod
    def of(cls, **arguments: Unpack[SandboxArguments]) -> SandboxSettings:
        """Check all arguments of `Sandbox`.

        Raises:
            TypeError, ValueError: naming the argument.
            IsolationError: the engine does not run on this system.
        """
        limits = sandbox_arguments.check_limits(arguments["limits"]) or Limits()
        snapshots = sandbox_arguments.check_snapshots(arguments["recovery"], arguments["history"])
        policy = sandbox_arguments.check_policy(arguments["policy"])
        tiers = acceptable(arguments["isolation"], arguments["require"])
        tiers = sandbox_arguments.check_grouping(arguments["cgroup"], tiers)
        mounts = sandbox_arguments.check_mounts(arguments["mounts"] or {})
        container = _container(arguments, limits, mounts)
        python, ready = arguments["python"], arguments["ready"]
        max_sessions, branches = arguments["max_sessions"], arguments["branches"]
        sandbox_arguments.check_counts(python, ready, max_sessions, branches)
        return cls(
            tiers=tiers,
            python=python,
            preload=sandbox_arguments.check_preload(arguments["preload"]),
            mounts=mounts,
            limits=limits,
            policy=policy,
            ready=ready,
            max_sessions=max_sessions,
            cgroup=arguments["cgroup"],
            snapshots=snapshots,
            branches=branches,
            hash_seed=sandbox_arguments.check_hash_seed(arguments["hash_seed"]),
            fair_share=arguments["fair_share"],
            container=container,
        )

    @property
    def preloads(self) -> bool:
        """True if the template imports modules, whose state all sessions inherit."""
        # A policy preloads modules as well, among them `random`.
        return bool(self.preload) or self.policy is not None

    @property
    def knows_arrays(self) -> bool:
        """True if sessions can use numpy: the restricted policy does not permit it."""
        return self.policy is None or self.policy.language != "restricted"

    @property
    def per_session(self) -> bool:
        """True if each session has a container of its own."""
        return self.container is not None and self.container.per_session

    @property
    def template_mounts(self) -> Mapping[str, str]:
        """The mounts as the template sees them: a container has them at their places already."""
        return self.mounts if self.container is None else {inside: inside for inside in self.mounts}

    @property
    def launch(self) -> Callable[[], ZygoteLauncher] | None:
        """The function that makes the launcher of a template; None for one on this system."""
        if self.container is None:
            return None
        return partial(backends.container_launcher, self.container)

    def check_limits(self, limits: Limits | None) -> Limits:
        """Return the limits of a session, which default to the sandbox's.

        Raises:
            TypeError, ValueError: they are none, or exceed those of the session's container.
        """
        limits = sandbox_arguments.check_limits(limits) or self.limits
        _check_container_limits(limits, self.container)
        return limits

    def check_checkpoint(self, saved: Checkpoint, interpreter: tuple[str, str]) -> None:
        """Raise CheckpointError unless a session can load `saved`.

        `interpreter`: version and implementation.
        """
        if self.policy is not None:
            raise CheckpointError(
                f"policy: language={self.policy.language!r} cannot check code in a checkpoint; "
                "restore the checkpoint in a sandbox without a policy"
            )
        required = saved.manifest.implementation, saved.manifest.python.split(".")[:2]
        version, implementation = interpreter
        if required != (implementation, version.split(".")[:2]):
            raise CheckpointError(
                f"the checkpoint is of {saved.manifest.implementation:.40} "
                f"{saved.manifest.python:.40}, and the sandbox runs {implementation} {version}: "
                "restore the checkpoint in a sandbox with the same minor version of Python"
            )


def _container(
    arguments: SandboxArguments, limits: Limits, mounts: Mapping[str, str]
) -> ContainerSettings | None:
    image, runtime = arguments["image"], arguments["runtime"]
    container_limits, inside = arguments["container_limits"], arguments["inside"]
    per_session = arguments["per_session"]
    container_settings.check(
        *(arguments["isolation"], image, runtime, container_limits),
        per_session=per_session,
        inside=inside,
        fair_share=arguments["fair_share"],
    )
    if image is None:
        return None
    if per_session is None:
        per_session = has_own_kernel(runtime)
    container = ContainerSettings(
        image, runtime, container_limits, arguments["python"], mounts, per_session, inside
    )
    _check_container_limits(limits, container)
    return container


def _check_container_limits(limits: Limits, container: ContainerSettings | None) -> None:
    if container is not None and container.limits is not None:
        container_settings.check_room(limits, container.limits)
