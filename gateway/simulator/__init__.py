"""An upstream without a network, with OpenAI's endpoints and Anthropic's Messages API: for the demo and tests.

1. It shares no code with the gateway: an upstream with the gateway's view of the API would have the same errors.
2. Its answers depend on the request alone. The text follows from seed, model, prompt and the number of the choice; each
   count in `usage` is the count of `text.split_tokens`, so that a client can compute it.
3. It records the served calls, for comparison with the gateway's usage report.

A call passes `requests` (body), `choices` (output as tokens), `answers` (wire form), `server` (pace) and
`ledger` (record). `messages` has all of the Messages API.
"""

from .choices import DEFAULT_MODELS, Settings
from .server import build_app, serve, serve_on
from .text import count_tokens, split_tokens
