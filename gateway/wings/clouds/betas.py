"""The values of `anthropic-beta` that Claude takes at Vertex AI and at Bedrock. Pure.

Claude Code sends those of Anthropic's own API, and both clouds refuse a request for one that they do not know: "invalid
beta flag" (litellm#16561, new-api#3041, claude-code#56595), "Unexpected value(s) ... for the `anthropic-beta` header"
(claude-code#21625, #34802). So only known ones go there. The lists are those of AWS' page "Anthropic Claude Messages
API" as litellm#19877 has them, and of LiteLLM 1.110.2, `anthropic_beta_headers_config.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

CONTEXT_MANAGEMENT = "context-management-2025-06-27"
_BOTH = frozenset({
    "compact-2026-01-12", "computer-use-2025-01-24", "computer-use-2025-11-24", "context-1m-2025-08-07",
    CONTEXT_MANAGEMENT, "interleaved-thinking-2025-05-14", "tool-search-tool-2025-10-19",
})  # fmt: skip
KNOWN: Mapping[str, Collection[str]] = {
    "bedrock": _BOTH | {
        "computer-use-2024-10-22", "dev-full-thinking-2025-05-14", "effort-2025-11-24", "output-128k-2025-02-19",
        "token-efficient-tools-2025-02-19", "tool-examples-2025-10-29",
    },
    "vertex": _BOTH | {"web-search-2025-03-05"},
}  # fmt: skip
"""The betas by `paths`. A model may take fewer, as Opus 4.7 does at Bedrock (claude-code#49370): see `betas`."""

OTHER_NAMES: Mapping[str, str] = {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}
"""The names of betas of Anthropic's own API at the clouds (litellm#19373)."""


def taken(value: str, known: Collection[str]) -> list[str]:
    """The values of a header that go to the cloud, by their names there."""
    named = [OTHER_NAMES.get(each.strip(), each.strip()) for each in value.split(",")]
    return list(dict.fromkeys([each for each in named if each in known]))


def with_known(headers: Iterable[tuple[str, str]], known: Collection[str]) -> tuple[tuple[str, str], ...]:
    """The headers with the betas alone that the cloud takes."""
    found = []
    for name, value in headers:
        if name.lower() != "anthropic-beta":
            found.append((name, value))
        elif left := taken(value, known):
            found.append((name, ",".join(left)))
    return tuple(found)


def left_out(betas: Collection[str]) -> tuple[str, ...]:
    """The members of a body that these betas do not allow, and whose absence changes no answer: Claude Code's
    `context_management` would be refused ("Extra inputs are not permitted", developer.konghq.com#5952)."""
    return () if CONTEXT_MANAGEMENT in betas else ("context_management",)
