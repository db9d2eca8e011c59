"""Secrets that load and cannot be right, by their form alone: a warning never shows any of their characters."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from .faults import ConfigFault, format_faults
from .include import Place
from .price_table import provider_of
from .sections import Config

HASHED = "nothing can present it; a key of the file takes sha256 in place of its secret"
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"ENC\[AES256_GCM,.*\]"), "is text that sops has encrypted; decrypt it before the start"),
    (re.compile(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}"), f"is a bcrypt hash: {HASHED}"),
    (re.compile(r"\$argon2\w+\$.+"), f"is an argon2 hash: {HASHED}"),
    (re.compile(r"(?:export\s*)?[A-Z][A-Z0-9]*_[A-Z0-9_]+=.+"), "has the form NAME=value; leave out NAME="),
    (re.compile(r"([\"'`]).*\1"), "has quotes around it, which are sent with it; leave them out"),
    (re.compile(r"-----BEGIN.*"), "is a key or certificate in PEM, and no secret of an API"),
    (re.compile(r"/(?:[\w.-]+/)+[\w.-]+"), "is a path; for the content of a file write ${file:/path}"),
)
"""The whole of a secret, and the sentence about it."""

PREFIXES: Mapping[str, str] = {
    "sk-ant-": "anthropic", "sk-proj-": "openai", "sk-svcacct-": "openai", "sk-or-v1-": "openrouter", "gsk_": "groq",
    "pplx-": "perplexity", "AIza": "google",
}  # fmt: skip
"""Beginnings of keys by their provider in the price table, as scanners for secrets know them (gitleaks,
`config/gitleaks.toml`: anthropic-api-key, openai-api-key, perplexity-api-key, gcp-api-key)."""

OWN = "sk-gw-"
"""Beginning of the keys that this gateway makes."""
SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def warnings_of_forms(config: Config, secrets: Iterator[tuple[Place, str]]) -> Iterator[ConfigFault]:
    """A warning for each secret that has one of these forms."""
    for place, text in secrets:
        sentence = next((sentence for form, sentence in FORMS if form.fullmatch(text)), None) or _base64(text)
        if sentence is None and place[0] == "upstreams" and place[2] in ("api_key", "api_keys"):
            sentence = _of_another(text, config.upstreams[str(place[1])].base_url)
        if sentence is None and place[0] == "keys" and SHA256.fullmatch(text):
            sentence = "looks like a SHA-256, which is written as sha256; as a secret clients present it as it is"
        if sentence is not None:
            yield ConfigFault(format_faults(place), sentence)


def _base64(text: str) -> str | None:
    """A key in base64, as a Kubernetes Secret has it."""
    if len(text) < 24 or len(text) % 4:
        return None
    try:
        decoded = base64.b64decode(text, validate=True).decode("ascii").strip()
    except (binascii.Error, UnicodeDecodeError):
        return None
    is_key = decoded.startswith((*PREFIXES, OWN, "sk-"))
    return "is base64, as in a Kubernetes Secret; decode it" if is_key else None


def _of_another(text: str, base_url: str) -> str | None:
    """A key of another provider than the one of a known address."""
    if (here := provider_of({"base_url": base_url})) is None:
        return None
    if text.startswith(OWN):
        return f"is a key of a gateway such as this one; write the key of {here}"
    found = next((provider for start, provider in PREFIXES.items() if text.startswith(start)), None)
    return f"has the form of a key of {found}, and is sent to {here}" if found not in (None, here) else None
