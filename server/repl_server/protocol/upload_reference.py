"""`UploadReference`: an upload as a reset names it, for one variable."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from .upload_decoding import Type


class UploadReference(BaseModel):
    """The upload of hash `sha256`, as a value of `type`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    type: Type


# Each is a variable, and a file that is open while the objects are made.
References: TypeAlias = Annotated[dict[str, UploadReference], Field(max_length=256)]
