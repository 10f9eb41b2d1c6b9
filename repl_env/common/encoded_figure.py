"""`EncodedFigure`: a figure of an observation, which travels as base64."""

from __future__ import annotations

import base64
import binascii
import os


class EncodedFigure(str):
    """A picture that a cell has drawn: PNG in base64, which a notebook shows."""

    __slots__ = ()

    @property
    def png(self) -> bytes:
        """The bytes of the PNG file; ValueError if the text is no base64."""
        try:
            return base64.b64decode(self, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the figure is no base64: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the PNG file `path`, which is replaced if there is one."""
        png = self.png
        with open(path, "wb") as file:
            file.write(png)

    def __repr__(self) -> str:
        return f"<EncodedFigure, {len(self) * 3 // 4:,} bytes of PNG>"

    def _repr_png_(self) -> bytes:
        return self.png
