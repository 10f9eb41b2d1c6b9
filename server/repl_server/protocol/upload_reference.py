"""`UploadReference`: the upload that a reset names as the value of one variable."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from .upload_decoding import Type


class UploadReference(BaseModel):
    """The upload with the hash `sha256`, decoded as `type`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    type: Type


# Bounded, because each reference is a variable, and an open file while the uploads are decoded.
References: TypeAlias = Annotated[dict[str, UploadReference], Field(max_length=256)]
