"""What all sections of the settings have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Strict and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
