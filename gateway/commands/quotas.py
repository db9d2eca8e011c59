"""`gateway quotas`: the windows of the whole gateway, of upstreams and of labels."""

from __future__ import annotations

import argparse

from .registry import Actions
from .registry import run as run
from .windows import ANY_SCOPE, add_window_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "SCOPE is what a refusal and GET /admin/api/quotas call the scope, such as upstream:openai."
    add_window_actions(Actions(parser), "quotas", ANY_SCOPE, "upstream:openai")
