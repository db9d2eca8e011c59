"""The rule that estimates tokens where the upstream reports none: against its description, and real tokenisers."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api.prompt_tokens import MAX_COUNTED
from gateway.formats import token_rule

from .slow_scan import quarters_of

# A text, and how many tokens it has by OpenAI's o200k and cl100k vocabularies (counted with both, and written down).
KNOWN: list[tuple[str, int, int]] = [
    ("Hello, world! How are you today?", 9, 9),
    ("The quick brown fox jumps over the lazy dog, and nobody knows why it does so every single morning.", 21, 21),
    ("The internationalization of telecommunication was discussed at length", 10, 10),
    ("Donaudampfschifffahrtsgesellschaftskapitän sagt: Grüß Gott!", 19, 23),
    ("Le cœur a ses raisons que la raison ne connaît point.", 12, 15),
    ("Příliš žluťoučký kůň úpěl ďábelské ódy.", 22, 29),
    ("Съешь же ещё этих мягких французских булок, да выпей чаю.", 19, 36),
    ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.", 20, 34),
    ("הפגישה תתחיל מחר בשעה שלוש, ומזג האוויר יהיה נעים.", 22, 50),
    ("هل تعلم أن القطط تنام معظم اليوم؟", 10, 25),
    ("今天天气很好所以我们打算去公园散步。", 14, 21),
    ("明日の会議は三時に始まります。今日はいい天気ですね。", 18, 26),
    ("회의는 내일 세 시에 시작합니다. 오늘은 날씨가 좋습니다.", 18, 26),
    ("भारत एक विशाल देश है जहाँ अनेक भाषाएँ बोली जाती हैं।", 14, 55),
    ("def main(argv: list[str]) -> int:\n    for each in argv:\n        print(f\"{each!r}\")\n    return 0\n", 29, 29),
    ("if (x != null && y[0] >= 3) { return { ...a, b: c?.d ?? 'e' }; }", 31, 31),
    ("{\"name\": \"widget\", \"price\": 12.5, \"tags\": [\"a\", \"b\"], \"ok\": true}", 28, 28),
    ("3.14159 26535 8979323846, 2026-11-22T05:20:43Z, +49 30 901820", 35, 35),
    ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk", 29, 30),
    ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", 25, 25),
    ("👩‍👩‍👧‍👦 🎉🔥✅ ¯\\_(ツ)_/¯", 23, 35),
    ("| a | b |\n|---|---|\n| 1 | 2 |\n\n\tindented\r\n", 21, 21),
    ("a b c d e f g h 1 2 3 ! ? .", 17, 17),
    ("ALL CAPITALS AND camelCaseNames AND snake_case_names", 11, 11),
]  # fmt: skip


def written(text: str, *, is_ascii: bool = False) -> bytes:
    """The text as a JSON string, with its closing quote."""
    return json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")[1:]


def tokens(text: str) -> int:
    return token_rule.tokens_of(token_rule.count(written(text)).quarters)


@pytest.mark.parametrize(("text", "o200k", "cl100k"), KNOWN)
def test_a_text_is_not_charged_below_what_tokenisers_make_of_it(text: str, o200k: int, cl100k: int) -> None:
    truth = max(o200k, cl100k)
    assert truth <= tokens(text) <= 2.5 * truth


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a", 1), ("abc", 1), ("abcd", 2), ("a b", 2), ("abc def", 2),
        ("1", 1), ("123", 1), ("1234", 2), (" 1", 2), ("a1", 2), ("1a", 3),
        ("camelCase", 3 + 1), ("ABC", 1),
        (",", 1), ("...", 3), ('"', 1), ("\\", 1), ("/", 1),
        ("\n", 1), ("\n\n", 1), ("\n\n\n", 2), ("\t", 1),
        (" ", 1), ("a ", 2), ("    a", 2), ("a      b", 3),
        ("я", 1), ("яяяя", 3), ("é", 2), ("中", 2), ("中文", 3), ("あ", 2), ("한", 2), ("😀", 4), ("\ud800", 2),
    ],
)  # fmt: skip
def test_what_counts(text: str, count: int) -> None:
    assert tokens(text) == count
    assert (
        token_rule.tokens_of(token_rule.count(written(text, is_ascii=True)).quarters) == count
    )  # independent of escapes


@given(st.lists(st.text() | st.text(st.sampled_from('aA1 .\n\t"\\\0é中')), max_size=6), st.booleans())
@example(["\\", '\\"', "a"], False)
def test_pieces_are_what_a_slow_reader_finds(texts: list[str], is_ascii: bool) -> None:
    joined = b"".join(written(text, is_ascii=is_ascii) for text in texts)
    count = token_rule.count(joined)
    assert count.ends == len(texts)
    alone = [token_rule.count(written(text, is_ascii=is_ascii)).quarters for text in texts]
    assert count.quarters == sum(alone)  # no token spans two texts
    readable = [text for text in texts if not any("\ud800" <= sign <= "\udfff" for sign in text)]
    assert sum(map(quarters_of, readable)) == sum(token_rule.count(written(text)).quarters for text in readable)


@given(st.binary(max_size=200))
def test_no_bytes_hurt(data: bytes) -> None:
    assert token_rule.count(data).quarters >= 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_tokeniser_is_given_the_whole_text_however_it_came(size: int) -> None:
    text = 'One "two", ünï \\ three\n\t😀 你好'
    came = b"".join(
        json.dumps(text[start : start + size], ensure_ascii=size % 2 == 0)[1:-1].encode() + b'"'
        for start in range(0, len(text), size)
    )
    given: list[str] = []

    def tokeniser(text: str) -> int:
        given.append(text)
        return 5

    found = token_rule.counting(tokeniser)(came)
    assert given == [text]
    assert (token_rule.tokens_of(found.quarters), found.ends) == (5, -(-len(text) // size))


@pytest.mark.parametrize("came", [b'\\ud83d"', b'\xff"', b"x" * (MAX_COUNTED + 1) + b'"', b'\\q"'])
def test_what_a_tokeniser_cannot_or_should_not_take_goes_by_the_rule(came: bytes) -> None:
    def tokeniser(text: str) -> int:
        return len(text.encode())

    assert token_rule.counting(tokeniser)(came) == token_rule.count(came)


def test_without_a_tokeniser_the_rule_counts() -> None:
    assert token_rule.counting(None) is token_rule.count
