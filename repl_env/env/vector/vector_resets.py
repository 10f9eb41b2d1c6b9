"""The environments that a reset of a `REPLVectorEnv` is for, and the arguments of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from operator import index as as_index
from typing import Any, TypeAlias

Requests: TypeAlias = Sequence[Mapping[str, Any] | None]


def resets_of(
    n: int,
    requests: Requests | None,
    only: Iterable[int] | None,
    shared: Mapping[str, Any],
    accepted: frozenset[str],
) -> dict[int, dict[str, Any]]:
    """Return the arguments of each environment's reset, by its number, out of `n`.

    `accepted` are the argument names that a reset accepts.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    numbers = list(range(n)) if only is None else _numbers(only, n)
    requests_by_number = (
        dict.fromkeys(numbers) if requests is None else _by_number(n, numbers, requests)
    )
    resets = {number: {**shared, **(requests_by_number[number] or {})} for number in numbers}
    for number, each in resets.items():
        if unknown := sorted(each.keys() - accepted):
            raise TypeError(f"environment {number}: reset takes no {', '.join(unknown)}")
    return resets


def _numbers(only: Iterable[int], n: int) -> list[int]:
    """Return the environments in `only`, in its order."""
    if isinstance(only, (str, bytes, Mapping)) or not isinstance(only, Iterable):
        raise TypeError(f"only must be a list of numbers, not {type(only).__name__}")
    numbers = [_number(each) for each in only]
    for number in numbers:
        if not 0 <= number < n:
            raise ValueError(f"only: there is no environment {number}; there are 0 to {n - 1}")
    if len(set(numbers)) < len(numbers):
        raise ValueError("only names an environment twice")
    return numbers


def _number(value: object) -> int:
    # A boolean mask would otherwise reset the environments 0 and 1, because True is 1.
    if isinstance(value, bool):
        raise TypeError("only must hold numbers of environments, not bools as a mask does")
    try:
        return as_index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"only must hold numbers of environments, not {kind}") from None


def _by_number(
    n: int, numbers: Sequence[int], requests: Requests
) -> dict[int, Mapping[str, Any] | None]:
    """Return the requests by the number of their environment."""
    if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Sized):
        raise TypeError(f"requests must be a list, not {type(requests).__name__}")
    for index, each in enumerate(requests):
        if not (each is None or isinstance(each, Mapping)):
            kind = type(each).__name__
            raise TypeError(f"requests[{index}] must be a mapping or None, not {kind}")
    if len(requests) == n:
        if len(numbers) == n and list(numbers) != sorted(numbers):
            raise ValueError("only names all environments: leave it out, or give it in their order")
        return dict(enumerate(requests))
    if len(requests) != len(numbers):
        expected = f"{n} environments" if len(numbers) == n else f"the {len(numbers)} in only"
        raise ValueError(f"requests: {len(requests)} for {expected}")
    return dict(zip(numbers, requests, strict=True))
