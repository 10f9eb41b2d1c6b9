"""A policy prepared in a template: the check of each cell, and the builtins of cells."""

from __future__ import annotations

from ast import Module
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SandboxError
from ..types import Policy
from .lint import Lint
from .modules import offered

# The first version whose list of builtins leaves out functions that iterate in C, and the first
# version that may break this module.
_OLDEST, _TOO_NEW = 9, 10


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """`check` takes a cell's syntax tree and returns the one to run, or raises PolicyError.

    `builtins`: builtins of cells in place of Python's own; None keeps those. `check_module` takes
    the tree of a module of the workspace and the module's package, and raises PolicyError; None
    where no such module can be imported.
    """

    check: Callable[[Module], Module]
    builtins: dict[str, object] | None = None
    check_module: Callable[[Module, str], None] | None = None


def prepare(policy: Policy) -> PolicyRules | None:
    """Return the rules of `policy`; None where there are none.

    Raises:
        SandboxError: this interpreter lacks a library that the policy needs.
    """
    if policy.language == "full":
        return None
    if policy.language == "lint":
        imports = None if policy.imports is None else tuple(policy.imports)
        denied = tuple(policy.calls_denied)

        def check_module(tree: Module, package: str) -> None:
            # A separate Lint: names of cells do not count in modules.
            Lint(imports, denied, package)(tree)

        return PolicyRules(Lint(imports, denied), check_module=check_module)
    _check_version()
    # Imported on demand: other sessions neither pay for this module nor need RestrictedPython.
    from .modules import ModuleProxies
    from .restricted import Restricted, guarded_builtins

    modules = offered(policy.imports)
    proxies = ModuleProxies(modules)
    lint = Lint(modules, tuple(policy.calls_denied))
    return PolicyRules(Restricted(lint, proxies), guarded_builtins(proxies))


def _check_version() -> None:
    from importlib import metadata

    remedy = (
        f"policy: language='restricted' needs RestrictedPython >= {_OLDEST}, < {_TOO_NEW} in the "
        "interpreter of the sandbox; install it there (python -m pip install "
        f"'RestrictedPython>={_OLDEST},<{_TOO_NEW}'). "
    )
    try:
        import RestrictedPython  # noqa: F401

        version = metadata.version("RestrictedPython")
    except ImportError as error:
        raise SandboxError(f"{remedy}{type(error).__name__}: {error}") from error
    major = version.partition(".")[0]
    if not major.isdecimal() or not _OLDEST <= int(major) < _TOO_NEW:
        raise SandboxError(f"{remedy}It has {version}")
