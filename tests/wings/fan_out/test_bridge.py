"""A completions call as chat calls, and their answers as one completion; invalid answers are refused."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import json_document
from gateway.config import Capabilities, Config, Route, build
from gateway.errors import UpstreamRefused
from gateway.formats import table
from gateway.formats.events import Unfit
from gateway.formats.format import ScanInput
from gateway.formats.openai.frame import Frame, as_completion
from gateway.formats.openai.reader import StreamScan, reported
from gateway.pipeline.request import changed_members
from gateway.quota.pricing import total_usage
from gateway.records import Call, Key, Usage
from gateway.wings.fan_out.answer import ChatChoice, One, Stream, answer_of, choices_of, read, usage_event, write
from gateway.wings.fan_out.bridges import Split, as_chat, characters, reword
from tests.amounts import amount
from tests.formats.test_stream_scan import read as read_events
from tests.test_floors import complaints_of, impure
from tests.wings.fan_out.golden import FIT, GOLDEN, capabilities, events, is_stream

WHOLE = [name for name in GOLDEN if not is_stream(name)]
STREAMS = [name for name in GOLDEN if is_stream(name)]


def config() -> Config:
    return build({"upstreams": {"up": {"base_url": "http://up/v1"}}, "models": {"m": {"routes": [{"upstream": "up"}]}}})


def call(body: dict[str, Any]) -> Call:
    asked = table.read("completions", json.dumps(body).encode())
    model = config().models["m"]
    return Call("req_ID", 1700000000.5, Key("k"), "completions", asked, model, label_model="m", arrived=0.0)


def forwarded(part: Call, able: Capabilities) -> Any:
    """The request to the upstream for one of the calls."""
    changes = changed_members(part, (), Route(upstream="up"), able)
    return json.loads(json_document.replace(part.params.document, changes))


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("name", GOLDEN)
def test_each_prompt_becomes_a_chat(name: str) -> None:
    golden = GOLDEN[name]
    split = Split(call(golden["request"]))
    able = Capabilities(**capabilities(name))
    assert [forwarded(as_chat(split.call(number)), able) for number in range(len(split))] == golden["sent"]


TEXTS = st.sampled_from(["Hello", "", " \n", "é😀", "x" * 5000])
REQUESTS = st.fixed_dictionaries(
    {"model": st.just("m"), "prompt": TEXTS | st.lists(TEXTS, min_size=1, max_size=3) | st.none()},
    optional={
        "max_tokens": st.integers(0, 9), "temperature": st.sampled_from([0, 0.5, 2]), "top_p": st.just(0.1),
        "n": st.integers(1, 3), "stop": st.sampled_from(["a", ["a", "b"], None]), "seed": st.integers(-9, 9),
        "logprobs": st.integers(0, 5) | st.none(), "user": st.sampled_from(["bob", ""]),
        "presence_penalty": st.just(-2), "frequency_penalty": st.just(1.5), "logit_bias": st.just({"50256": -100}),
        "echo": st.just(False), "suffix": st.none(),
    },
)  # fmt: skip


@pytest.mark.shortened
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@settings(max_examples=amount(150, 40))
@given(body=REQUESTS)
def test_each_chat_is_one_that_openai_accepts(body: dict[str, Any], is_streamed: bool) -> None:
    """Judges are the types of the official SDK, of completions before and of chats behind the translation."""
    completions, chats, names = validators()
    assert [error.message[:200] for error in completions.iter_errors(body)] == []
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}} if is_streamed else body
    split = Split(call(asked))
    for number in range(len(split)):
        sent = forwarded(as_chat(split.call(number)), Capabilities())
        assert sent.pop("stream", False) == is_streamed
        assert [error.message[:200] for error in chats.iter_errors(sent)] == []
        assert not sent.keys() - names
        assert sent.get("logprobs") or "top_logprobs" not in sent  # openai-openapi: top_logprobs needs logprobs


@cache
def validators() -> tuple[Any, Any, frozenset[str]]:
    """Of completions and of chats, and the names of a chat's parameters, beside which the schema allows others."""
    import jsonschema
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chats
    from pydantic import TypeAdapter

    types = completions.CompletionCreateParamsNonStreaming, chats.CompletionCreateParamsNonStreaming
    one, other = [jsonschema.Draft202012Validator(TypeAdapter(each).json_schema()) for each in types]
    return one, other, frozenset(other.schema["properties"])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (None, [None]),
    ],
)
def test_one_prompt_after_the_other(prompt: Any, prompts: list[Any]) -> None:
    """For an upstream with completions of one prompt: only the prompt is changed."""
    body = {"model": "m", "prompt": prompt, "n": 2, "best_of": 3, "echo": True, "suffix": "s", "logprobs": 0, "x": [1]}
    split = Split(call(body))
    parts = [split.call(number) for number in range(len(split))]
    assert [forwarded(part, Capabilities()) for part in parts] == [{**body, "prompt": each} for each in prompts]
    assert {part.endpoint for part in parts} == {"completions"}
    assert [part.params.choices for part in parts] == [2] * len(prompts)
    assert [part.params.candidates for part in parts] == [3] * len(prompts)


def test_a_part_is_a_whole_call_of_its_own() -> None:
    whole = call({"model": "m", "prompt": ["a" * 400, "b"], "n": 3, "max_tokens": 7, "logprobs": 2, "stream": True})
    split = Split(whole)
    one, other = (as_chat(split.call(number)) for number in range(2))
    assert one.id == whole.id
    assert (one.params.prompts, one.params.n, one.params.output_limit) == (1, 3, 7)
    assert one.params.prompt_tokens > 100 > other.params.prompt_tokens
    assert one.params.document.members == json.loads(one.params.document.text)
    assert table.read("chat", one.params.document.text.encode()).n == 3  # validated by the rules of chat


# ------------------------------------------------------------------------------------------------------- plain answers


def answered(name: str) -> Any:
    """The answer to the plain call of a golden file."""
    golden = GOLDEN[name]
    whole = call(golden["request"])
    split = Split(whole)
    made, usages = [], []
    for number, answer in enumerate(golden["answers"]):
        made.append(answer_of(json.dumps(answer).encode(), one_of(split, whole, number)))
        usages.append(reported(answer.get("usage")))
    known = [usage for usage in usages if usage is not None]
    summed = total_usage(known) if len(known) == len(usages) else None
    return json.loads(write(Frame.of(whole), made[0].source, [each.choices for each in made], summed))


def one_of(split: Split, whole: Call, number: int) -> One:
    has_logprobs = whole.params.document.members.get("logprobs") is not None
    return One(number, whole.params.n, True, has_logprobs, characters(split.call(number)))


@pytest.mark.parametrize("name", [name for name in WHOLE if name in FIT])
def test_chats_become_one_completion(name: str) -> None:
    assert answered(name) == GOLDEN[name]["answer"]


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in FIT])
def test_what_is_no_answer_is_refused(name: str) -> None:
    with pytest.raises(Unfit):
        answered(name)


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{", b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(Unfit):
        read(body)


@pytest.mark.parametrize("choices", [None, {}, [], [None], [1], [{"index": "0"}], [{"index": True}], [{"index": -1}]])
@pytest.mark.parametrize("is_chat", [True, False])
def test_odd_choices_are_refused(choices: Any, is_chat: bool) -> None:
    with pytest.raises(Unfit):
        choices_of(One(0, 1, is_chat, False, 0), {"choices": choices})


ODD_MESSAGES: list[dict[str, Any]] = [
    {"message": "x"}, {"message": {"content": 1}}, {"message": {"content": ["x"]}}, {"message": {"refusal": 1}},
    {"message": {"content": "x"}, "finish_reason": 1}, {"message": {"content": "x", "function_call": {"name": "f"}}},
    {"message": {"content": "x"}, "finish_reason": "stop", "logprobs": [1]},
    {"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": ["x"]}},
    {"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": [{"token": "x"}]}},
    {"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": [{"token": 1, "logprob": 0}]}},
    {"message": {"content": "x"}, "finish_reason": "stop",
     "logprobs": {"content": [{"token": "x", "logprob": 0, "bytes": [999]}]}},
    {"message": {"content": "x"}, "finish_reason": "stop",
     "logprobs": {"content": [{"token": "x", "logprob": 0, "bytes": ["x"]}]}},
    {"message": {"content": "x"}, "finish_reason": "stop",
     "logprobs": {"content": [{"token": "x", "logprob": 0, "top_logprobs": [1]}]}},
    {"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": 1}},
    {"message": {"content": "x"}, "finish_reason": "stop",
     "logprobs": {"content": [{"token": "x", "logprob": 0, "top_logprobs": 1}]}},
]  # fmt: skip


@pytest.mark.parametrize("choice", ODD_MESSAGES, ids=json.dumps)
def test_odd_messages_are_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        choices_of(One(0, 1, True, True, 0), {"choices": [{"index": 0, **choice}]})


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_an_end_by_a_tool_is_refused(reason: str) -> None:
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": reason}
    with pytest.raises(Unfit):
        choices_of(One(0, 1, True, False, 0), {"choices": [choice]})


def test_choices_of_completions_keep_what_they_hold() -> None:
    given = [{"index": 1, "text": "b", "odd": 1}, {"index": 0, "text": "a", "logprobs": {"text_offset": [4]}}]
    assert choices_of(One(3, 2, False, True, 0), {"choices": given}) == [
        {"index": 6, "text": "a", "logprobs": {"text_offset": [4]}},
        {"index": 7, "text": "b", "odd": 1},
    ]


# --------------------------------------------------------------------------------------------------------------- usage


def test_usage_is_summed_and_says_where_it_comes_from() -> None:
    one, other = Usage(1, 2, 3, 4, "reported"), Usage(10, 20, 30, 40, "reported")
    assert total_usage([one, other]) == Usage(11, 22, 33, 44, "reported", parts=(one, other))
    assert total_usage([one, Usage()]) == one
    assert total_usage([one, other._replace(source="estimated")]).source == "estimated"
    assert total_usage([Usage(), Usage()]) == total_usage([]) == Usage()


def test_usage_without_details_shows_none() -> None:
    assert as_completion(Usage(1, 2)) == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


# ------------------------------------------------------------------------------------------------------------- streams


def streamed(name: str, cut: int | None = None, end: bytes = b"\n") -> tuple[list[list[Any]], Any]:
    """The client's events of each prompt's stream, and the usage; each stream is split into pieces of this length."""
    golden = GOLDEN[name]
    whole = call(golden["request"])
    split, shows = Split(whole), whole.params.include_usage
    seen: list[list[Any]] = []
    usages: list[Usage] = []
    for number, chunks in enumerate(golden["answers"]):
        scan = StreamScan(ScanInput(choices=whole.params.n))
        stream = Stream(one_of(split, whole, number), Frame.of(whole), shows_usage=shows, max_event_bytes=10_000_000)
        sent = b": a comment\n\n" + events(chunks).replace(b"\n", end) + b"data: [DONE]\n\n"
        places = range(0, len(sent) + (cut or len(sent)), cut or len(sent))
        passed = b"".join(stream.feed(scan.feed(sent[one:other])[0]) for one, other in pairwise(places))
        assert scan.is_complete
        assert scan.usage is not None
        assert stream.first is not None
        usages.append(scan.usage)
        seen.append(read_events(passed))
    usage = read_events(usage_event(Frame.of(whole), stream.first, total_usage(usages)))[0] if shows else None
    return seen, usage


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("cut", [None, 1, 7, 100])
@pytest.mark.parametrize("name", [name for name in STREAMS if name in FIT])
def test_streams_become_one_completion(name: str, cut: int | None, end: bytes) -> None:
    assert streamed(name, cut, end) == (GOLDEN[name]["chunks"], GOLDEN[name]["usage_chunk"])


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in FIT])
def test_a_stream_that_is_no_answer_is_refused(name: str) -> None:
    with pytest.raises(Unfit):
        streamed(name)


def stream_of(*, max_event_bytes: int = 1_000_000, n: int = 1, is_chat: bool = True, prompt: int = 0) -> Stream:
    one = One(prompt, n, is_chat, False, 0)
    return Stream(one, Frame("1", 1, "m"), shows_usage=False, max_event_bytes=max_event_bytes)


def test_one_event_may_hold_a_whole_answer() -> None:
    text = "x\n" * 100_000
    (event,) = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}]
    sent = events([event, event])
    for cut in (1000, len(sent)):
        stream = stream_of()
        passed = b"".join(stream.feed(sent[at : at + cut]) for at in range(0, len(sent), cut))
        assert [chunk["choices"][0]["text"] for chunk in read_events(passed)] == [text, text]


def test_an_event_without_end_is_not_held_for_ever() -> None:
    stream = stream_of(max_event_bytes=200_000)
    for _ in range(20):
        stream.feed(b"x" * 10_000)
    with pytest.raises(Unfit):
        stream.feed(b"x" * 10_000)


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"x", b'{"choices":[{"index":1}]}', b'{"choices":[7]}'])
def test_an_event_that_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(Unfit):
        stream_of().feed(b"data: " + data + b"\n\n")


@pytest.mark.parametrize("data", [b"{}", b'{"choices":null}', b'{"choices":[{"index":0}]}', b'{"choices":[]}'])
def test_an_event_that_says_nothing_is_left_out(data: bytes) -> None:
    assert stream_of().feed(b"data: " + data + b"\n\n") == b""


def test_chunks_of_completions_keep_what_they_hold() -> None:
    sent = events(
        [{"id": "x", "model": "up", "choices": [{"index": 1, "text": "a", "logprobs": {"text_offset": [9]}}]}]
    )
    (seen,) = read_events(stream_of(n=2, is_chat=False, prompt=2).feed(sent))
    assert seen["choices"] == [{"index": 5, "text": "a", "logprobs": {"text_offset": [9]}}]
    assert (seen["id"], seen["object"], seen["model"]) == ("cmpl-1", "text_completion", "up")


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=20), st.data())
def test_offsets_lead_to_the_tokens(words: list[str], data: st.DataObject) -> None:
    """For any text and any split of its bytes into tokens."""
    text = "".join(words).encode(errors="replace")
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=30))})
    tokens = [text[one:other] for one, other in pairwise(cuts)]
    entries = [{"token": t.decode(errors="replace"), "logprob": -1.0, "bytes": list(t)} for t in tokens]
    prompt = "Hi \u2603"
    choice = {
        "index": 0,
        "message": {"content": text.decode()},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
    }
    (received,) = choices_of(One(0, 1, True, True, len(prompt)), {"choices": [choice]})
    shown = received["logprobs"]
    whole = prompt + received["text"]
    assert len(shown["tokens"]) == len(shown["text_offset"]) == len(tokens)
    for token, spelt, offset in zip(tokens, shown["tokens"], shown["text_offset"], strict=True):
        if spelt.startswith("bytes:"):
            assert bytes.fromhex(spelt.removeprefix("bytes:").replace("\\x", "")) == token
        elif not any(other.startswith("bytes:") for other in shown["tokens"]):
            assert whole[offset : offset + len(spelt)] == spelt


# ------------------------------------------------------------------------------------------------------------ refusals

ROWS: list[tuple[str, str | None, Any, int, str, str | None]] = [
    # the upstream's message, its param; the prompt, the number of the part; the client's message
    ("Invalid 'messages[0].content': string too long.", "messages[0].content", "x", 0,
     "Invalid 'prompt': string too long.", "prompt"),
    ("Invalid 'messages[0].content': string too long.", "messages[0].content", ["x", "y"], 1,
     "Invalid 'prompt[1]': string too long.", "prompt[1]"),
    ("However, your messages resulted in 12 tokens. Please reduce the length of the messages.", "messages", "x", 0,
     "However, your prompt resulted in 12 tokens. Please reduce the length of the prompt.", "prompt"),
    ("Invalid 'max_completion_tokens': integer below minimum value.", "max_completion_tokens", "x", 0,
     "Invalid 'max_tokens': integer below minimum value.", "max_tokens"),
    ("Invalid 'top_logprobs'", "top_logprobs", "x", 0, "Invalid 'logprobs'", "logprobs"),
    ("Bad 'messages'.", None, "x", 0, "Bad 'prompt'.", None),
    ("messages.0.content is odd", "messages.0.content", "x", 0, "prompt is odd", "prompt"),
    ("Invalid 'temperature'; many messages", "temperature", "x", 0, "Invalid 'temperature'; many messages",
     "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "param", "prompt", "number", "received", "received_param"), ROWS)
def test_refusals_speak_of_what_the_client_sent(
    said: str, param: str | None, prompt: Any, number: int, received: str, received_param: str | None
) -> None:
    refused = reword(UpstreamRefused(400, said, "invalid_request_error", param, "c"), {"prompt": prompt}, number)
    assert (refused.message, refused.param) == (received, received_param)
    assert (refused.status, refused.type, refused.code) == (400, "invalid_request_error", "c")


def test_a_client_that_said_it_like_that_hears_it_like_that() -> None:
    given = UpstreamRefused(400, "max_completion_tokens", "t", "max_completion_tokens", None)
    refused = reword(given, {"prompt": "x", "max_completion_tokens": 0}, 0)
    assert (refused.message, refused.param) == ("max_completion_tokens", "max_completion_tokens")


@pytest.mark.parametrize("reason", [["stop"], {"type": "stop"}, 1, True])
def test_a_choice_whose_end_is_no_text_is_unfit(reason: object) -> None:
    with pytest.raises(Unfit):
        ChatChoice(0, has_logprobs=False).completions_choice({"content": "Hi"}, None, reason, 0)


def test_the_calls_are_made_purely() -> None:
    assert complaints_of(impure, ["gateway.wings.fan_out.bridges"]) == ""
