"""Names that load TorchRL when they are first used, and say how to install it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from repl_env.common.lazy_imports import lazy_exports

_EXTRA = ("torch", "torchrl", "tensordict", "gymnasium")


def needing_torchrl(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`lazy_exports` of `repl_env.common.lazy_imports`, for names that need the extra `torchrl`."""
    load, listed = lazy_exports(package, names)

    def load_with(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            message = f"{name} needs TorchRL: pip install 'repl-env[torchrl]'"
            raise ModuleNotFoundError(message, name=error.name) from error

    return load_with, listed
