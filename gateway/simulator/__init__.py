"""An honest OpenAI-compatible upstream that needs no network: for the demo, the tests and the benchmarks.

It shares no code with the gateway, because an upstream that had the gateway's view of the API would share its mistakes
and prove nothing. Its answers are a function of the request alone: the text follows from seed, model, prompt and the
number of the choice, and every count in `usage` is the count of `text.split_tokens` over what was read or generated, so
that a caller can work it out again. What it served stands in a ledger of its own, to be held against the gateway's.

A call runs through the files in this order: `requests` checks the body, `choices` generates the output as tokens,
`answers` (chat, completions) and `vectors` (embeddings) put it into wire form, `server` sends it at the pace that was
set, `ledger` keeps what was served.
"""

from .server import build_app, serve, serve_on
from .settings import DEFAULT_MODELS, Settings
from .text import count_tokens, split_tokens

__all__ = ["DEFAULT_MODELS", "Settings", "build_app", "count_tokens", "serve", "serve_on", "split_tokens"]
