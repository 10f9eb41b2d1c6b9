"""Names that load verifiers when they are first used, and say how to install it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from repl_env.common.lazy_imports import lazy_exports


def needing_verifiers(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`lazy_exports` of `repl_env.common.lazy_imports`, for names that need the extra
    `verifiers`.
    """
    load, listed = lazy_exports(package, names)

    def load_with(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("verifiers", "pydantic_config"):
                raise
            told = f"{name} needs verifiers: pip install 'repl-env[verifiers]'"
            raise ModuleNotFoundError(told, name=error.name) from error

    return load_with, listed
