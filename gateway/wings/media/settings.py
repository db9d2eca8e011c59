"""The names of the endpoints in the settings of models."""

from __future__ import annotations

from gateway.config.wings import WingNames

NAMES = WingNames(("images", "image_edits", "image_variations", "speech", "transcriptions", "translations"))
