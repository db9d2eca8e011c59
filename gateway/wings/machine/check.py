"""The line of `gateway check` about the machine."""

from __future__ import annotations

from gateway.commands.check import WingLine

from .findings import findings

LINE = WingLine("machine", findings=findings)
