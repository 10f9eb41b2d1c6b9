"""A function of the host as a session is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Offered:
    """One row of `Configure`; see `repl_sandbox.Offer` for what each field means.

    `methods` are names: the worker calls the method "result" of the function "spawn" as the
    function "spawn.result", which is no identifier and so no name that a user can give.
    """

    name: str
    doc: str = ""
    face: str = "plain"
    signature: str | None = None
    raw: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether JSON goes in and out, and there is nothing more to it."""
        return self.face == "plain" and self.signature is None and not (self.raw or self.raises)

    def row(self) -> list[Any]:
        """The fields in their order, as JSON."""
        lists = [list(names) for names in (self.raw, self.methods, self.raises)]
        return [self.name, self.doc, self.face, self.signature, *lists]


def read(row: Any) -> Offered:
    """The function that `row` describes; TypeError if it is none."""
    if type(row) is not list or len(row) != 7:
        raise TypeError("a function is not a list of 7 fields")
    name, doc, face, signature, *lists = row
    if not all(type(text) is str for text in (name, doc, face)):
        raise TypeError("name, docstring or face of a function is not text")
    if signature is not None and type(signature) is not str:
        raise TypeError("the signature of a function is not text")
    for names in lists:
        if type(names) is not list or not all(type(each) is str for each in names):
            raise TypeError("a function has a field that is no list of names")
    return Offered(name, doc, face, signature, *map(tuple, lists))
