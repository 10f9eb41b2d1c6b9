"""`start_template`: the template of a sandbox, in the strongest acceptable tier that works."""

from __future__ import annotations

from functools import partial

from ..backends.isolation_tiers import strongest
from ..backends.sandbox_settings import SandboxSettings
from ..errors import IsolationError
from ..zygote.client.zygote_handle import ZygoteHandle
from ..zygote.client.zygote_per_session import ZygotePerSession
from .template_process import TemplateProcess


def start_template(
    settings: SandboxSettings,
) -> tuple[TemplateProcess, tuple[IsolationError, ...]]:
    """Return the template, and the errors of the stronger tiers that do not work here.

    Raises:
        IsolationError: no acceptable tier works here.
        SandboxError: the interpreter does not start, or lacks a module.
    """

    def start(tier: str) -> TemplateProcess:
        zygote = partial(
            ZygoteHandle,
            settings.python,
            settings.preload,
            settings.template_mounts,
            settings.policy,
            tier,
            settings.hash_seed,
            settings.launch,
        )
        return TemplateProcess.of(
            partial(ZygotePerSession, zygote) if settings.per_session else zygote,
            tier,
            settings.cgroup,
            settings.limits,
            settings.snapshots,
            fair_share=settings.fair_share,
        )

    return strongest(settings.tiers, start)
