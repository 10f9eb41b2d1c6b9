"""Credentials in the files of a Space, which everybody may read: no file with one is uploaded."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator

# How credentials look, by whom they are for. Each form is long and marked, so that no text of a
# program is taken for one.
_FORMS = {
    "a token of Hugging Face": rb"\bhf_[A-Za-z0-9]{30,}",
    "a key of repl-env": rb"\brepl_[A-Za-z0-9_-]{43}\b",
    # Of no use to whoever reads it, but whose keys a server knows is nobody's business.
    "a line of a key file": rb"(?:^|[^\w.@-])(?!sha256:)[A-Za-z0-9][\w.-]{0,63}:[0-9a-fA-F]{64}\b",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a key of a model's endpoint": rb"\bsk-[A-Za-z0-9_-]{20,}",
    "a token of GitHub": rb"\b(gh[opusr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22,})",
    "a key of AWS": rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a key of Google": rb"\bAIza[0-9A-Za-z_-]{35}",
    "a token of Slack": rb"\bxox[abprs]-[A-Za-z0-9-]{10,}",
}
# A value that is given to such a name in the settings of a Space. Not in programs, where what
# follows is an expression.
_SETTING = re.compile(
    rb"""(?i)\b[A-Z0-9_]*(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)["']?\s*[=:]\s*["']?[A-Z0-9+/_.~-]{16,}"""
)
# A wheel's RECORD lists random-looking digests, of which one may contain "-sk-" by chance.
_DIGEST = re.compile(rb",sha256=[A-Za-z0-9_-]{43},")
_ANY = {kind: re.compile(form) for kind, form in _FORMS.items()}


def credential_in(name: str, data: bytes, known: Iterable[str] = ()) -> str | None:
    """The kind of credential that a file has in it, for people; None if it has none.

    `known`: secrets of this process, which no file may hold whatever they look like.
    """
    values = [value.encode() for value in known if value]
    if name.endswith(".whl"):
        found = ((inside, _in(text, values)) for inside, text in _members(data))
        return next((f"{kind} in {inside}" for inside, kind in found if kind), None)
    return _in(data, values) or ("a secret" if _SETTING.search(data) else None)


def _in(data: bytes, values: Iterable[bytes]) -> str | None:
    if any(value in data for value in values):
        return "the token of this upload"
    text = _DIGEST.sub(b",,", data)
    return next((kind for kind, form in _ANY.items() if form.search(text)), None)


def _members(wheel: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in archive.namelist():
            yield name, archive.read(name)
