"""The package of the extra `tokens` against published counts, and against hostile text."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from gateway.api import tokenizer
from gateway.api.prompt_tokens import MAX_COUNTED, Counter
from gateway.config import Model
from gateway.formats.table import read
from tests.flows.gateway_process import WITHOUT_TOKENS

from .params_table import body


def model(*real_names: str | None) -> Model:
    routes = tuple({"upstream": "main", "model": name} for name in real_names or (None,))
    return Model.model_construct(routes=tuple(Model.model_validate({"routes": [route]}).routes[0] for route in routes))


@cache
def counters() -> tokenizer.Counters:
    """Of the two tables, which take long to load."""
    return tokenizer.load({"*": model()})


def counter(name: str) -> Counter:
    found = counters()(name)
    assert found is not None
    return found


# Text, its tokens in cl100k_base, in o200k_base. The first from OpenAI's cookbook ("How to count tokens with
# tiktoken"), its API reference and the tests of tiktoken; for the others tiktoken 0.14 and the npm packages
# gpt-tokenizer 4.0 and js-tiktoken 1.0 agree, each with tables of its own.
COUNTS = [
    ("antidisestablishmentarianism", 6, 6),
    ("2 + 2 = 4", 7, 7),
    ("お誕生日おめでとう", 9, 8),
    ("Say this is a test", 5, 5),
    ("The food was delicious and the waiter...", 8, 8),
    ("rer", 1, 1),
    ("'rer", 2, 2),
    ("today\n ", 3, 3),
    ("today\n \n", 2, 2),
    ("today\n  \n", 2, 2),
    ("", 0, 0),
    (" ", 1, 1),
    ("  \t\n\r\n   x", 4, 5),
    ("I'll we'VE they'd", 7, 5),
    ("1234567890", 4, 4),
    ("def f(x):\n    return x ** 2\n", 11, 11),
    ("helloWorldHTTPServer", 4, 4),
    ("\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f", 15, 9),
    ("na\u00efve cafe\u0301", 5, 5),
    ("مرحبا بالعالم", 10, 4),
    ("한국어 中文 ไทย", 10, 4),
    ("\x00\x1f\x7f\ufeff\xa0\u3000", 6, 6),
    ("<|endoftext|>", 7, 7),
    ("<|im_start|>user<|im_sep|>", 13, 13),
    ("r" * 10000, 5000, 2500),
    (" " * 10000, 79, 79),
    ("\n" * 999, 32, 63),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cl100k", "o200k"), COUNTS, ids=lambda value: ascii(value)[:30])
def test_text_is_counted_as_others_count_it(text: str, cl100k: int, o200k: int) -> None:
    assert (counter("gpt-4")(text), counter("gpt-4o")(text)) == (cl100k, o200k)


GUIDE = "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."
LEVERAGE = "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."
JARGON = [
    ("system", None, GUIDE),
    ("system", "example_user", "New synergies will help drive top-line growth."),
    ("system", "example_assistant", "Things working well together will increase revenue."),
    ("system", "example_user", LEVERAGE),
    ("system", "example_assistant", "Let's talk later when we're less busy about how to do better."),
    ("user", None, "This late pivot means we don't have time to boil the ocean for the client deliverable."),
]
"""The messages with which OpenAI's cookbook compares its rule with the API."""


@pytest.mark.parametrize(("name", "received"), [("gpt-3.5-turbo-0613", 129), ("gpt-4", 129), ("gpt-4o", 124)])
def test_chat_has_as_many_tokens_as_the_api_said(name: str, received: int) -> None:
    messages = [{"role": role, "content": text} | ({"name": who} if who else {}) for role, who, text in JARGON]
    found = read("chat", body("chat", model=name, messages=messages), counters())
    assert (found.prompt_tokens, found.is_prompt_exact) == (received, False)


@pytest.mark.parametrize("letter", ["a", "-", " ", "\n", "字", "\U0001f600", "ab", "<|endoftext|>", "\u0301"])
def test_longest_text_that_is_counted_is_bounded_by_its_length(letter: str) -> None:
    """A tokeniser whose time grows with the square of a word's length takes minutes here."""
    text = letter * (MAX_COUNTED // len(letter))
    for name in ("gpt-4", "gpt-4o"):
        assert 0 < counter(name)(text) <= len(text.encode())


# ------------------------------------------------------------------------------------------------ whose tokens they are


@pytest.mark.parametrize(
    ("real_names", "is_counted"),
    [
        ((None,), True),
        (("gpt-4",), True),
        (("gpt-4", "gpt-3.5-turbo"), True),
        (("gpt-4", "gpt-4o"), False),
        (("gpt-4", "llama-3"), False),
        (("llama-3",), False),
    ],
)
def test_name_that_reaches_the_upstream_decides(real_names: tuple[str | None, ...], is_counted: bool) -> None:
    find = tokenizer.load({"gpt-4": model(*real_names)})
    assert (find("gpt-4") is not None) == is_counted
    assert find("gpt-4o") is None, "nobody offers it"


def test_name_behind_an_alias_is_counted_as_what_it_is() -> None:
    find = tokenizer.load({"fast": model("gpt-4o-mini"), "old": model("gpt-4"), "*": model()})
    text = "お誕生日おめでとう"
    counts = {name: found and found(text) for name in ("fast", "old", "gpt-5", "mystery") if (found := find(name)) or 1}
    assert counts == {"fast": 8, "old": 9, "gpt-5": 8, "mystery": None}


@pytest.mark.rest
def test_every_table_is_built_at_the_start_and_none_by_a_reload() -> None:
    """It holds up the whole process. In one of its own, because here they are all loaded."""
    program = (
        "import toktok; from gateway.api import tokenizer as tokens; from gateway.config import build\n"
        "from gateway.web.hot_reload import prepare\n"
        "built, plain = [], toktok._Tokenizer\n"
        "toktok._Tokenizer = lambda name, *more: built.append(name) or plain(name, *more)\n"
        "def to(name):\n"
        "    route = {'upstream': 'up', 'model': name}\n"
        "    upstreams = {'up': {'base_url': 'http://127.0.0.1:9/v1'}}\n"
        "    return build({'upstreams': upstreams, 'models': {'a': {'routes': [route]}}})\n"
        "tokens.describe(to('gpt-4').models); print(*built, 'by a look at the file')\n"
        "print(prepare(to('llama-3'), {}).find_counter('a')); print(*built)\n"
        "for name in ('gpt-4', 'o1'):\n"
        "    print(prepare(to(name), {}).find_counter('a')('お誕生日おめでとう'), *built)\n"
    )
    assert _python(program) == [
        "by a look at the file",
        "None", "cl100k_base o200k_base",
        "9 cl100k_base o200k_base", "8 cl100k_base o200k_base",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- without the package


@pytest.mark.rest
def test_without_the_package_nothing_is_known_and_nothing_imported() -> None:
    program = (
        "import sys; from gateway.api import tokenizer as tokens; from gateway.config import Model\n"
        "models = {'gpt-4': Model(routes=[{'upstream': 'x'}])}\n"
        "print(tokens.load(models)('gpt-4')); print(tokens.describe(models)); print('toktok' in sys.modules)\n"
    )
    assert _python(program, WITHOUT_TOKENS) == [
        "None", "estimated: the optional extra 'tokens' is not installed", "False",
    ]  # fmt: skip


def test_the_description_of_what_is_counted() -> None:
    models: dict[str, Any] = {"gpt-4": model(), "fast": model("gpt-4o-mini"), "mystery": model()}
    assert tokenizer.describe(models) == "counted for gpt-4, fast; estimated for mystery"
    assert tokenizer.describe({"*": model()}) == "counted for *"
    assert tokenizer.describe({"mystery": model()}) == "estimated for mystery"


def _python(program: str, env: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
