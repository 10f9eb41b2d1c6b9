"""Names that load a trainer's library when they are first used, and say how to install it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from repl_env.common.lazy_imports import lazy_exports


def exports_of_extra(
    package: str,
    names_by_module: Mapping[str, Iterable[str]],
    install: str,
    libraries: Collection[str],
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`lazy_exports`, for names that need `libraries`; `install` is what the error tells to do."""
    load, listed = lazy_exports(package, names_by_module)

    def load_with(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in libraries:
                raise
            raise ModuleNotFoundError(f"{name} needs {install}", name=error.name) from error

    return load_with, listed
