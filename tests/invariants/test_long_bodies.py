"""A long body is judged like a short one, although its long values are stand-ins in the worker."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api import attribution, file_ids, json_document, large_body, validate
from gateway.api.acting_tools import acts
from gateway.config import Capabilities, Limits, Model, RecordSettings, Route
from gateway.errors import InvalidRequest
from gateway.formats import ceilings, table
from gateway.pipeline.request import changed_members
from gateway.quota import windows
from gateway.records import Call, Endpoint, Key, Params
from gateway.relay import charge
from gateway.relay.charge import SentRequest
from gateway.wings.hedging import race
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire, ok_json, silent
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, settings
from tests.flows.test_quota import Under

GATEWAY = Path(table.__file__).parents[1]

WHOLE = "runs where the body is whole: in the process that reads long ones, or for bodies that are read whole"
FACTS = "asks `Document.large` first, for which the reading process has looked through the body"
REWRITES = "needs all values: for a long body it runs in the process that reads these (`formats/bridges.py`)"
SHORT = "reads values that stand-ins keep: texts, numbers and names of at most 512 characters"
PASSES = "hands the members to functions that are listed here or judged by the tests below"
READERS = {
    "api.acting_tools.acts": FACTS, "api.acting_tools.are_inside": FACTS,
    "api.capabilities._dropped": FACTS, "api.capabilities._refusal": FACTS,
    "api.capabilities.adaptation": SHORT, "api.file_ids.named_files": FACTS,
    "api.json_document.replace": FACTS,
    "api.json_document.spans": WHOLE, "api.large_body.brief": WHOLE, "api.large_body.with_first": FACTS,
    "api.prompt_tokens._bytes_of": WHOLE, "api.prompt_tokens.chat": WHOLE, "api.prompt_tokens.response": WHOLE,
    "api.validate.generation": WHOLE, "api.validate.read": WHOLE, "api.validate.restrict": SHORT,
    "wings.translate.bridges._of_large": FACTS,
    "wings.translate.bridges.refusal": FACTS, "wings.translate.bridges.translate": FACTS,
    "wings.cheaper.policy.may_change": FACTS, "wings.clouds.invoke_model.AsMessages.amend": SHORT,
    "wings.fan_out.prompts.PromptByPrompt._asked": REWRITES,
    "wings.fan_out.prompts.PromptByPrompt._carry": REWRITES, "wings.fan_out.bridges.Split.__init__": REWRITES,
    "wings.fan_out.bridges.as_chat": REWRITES, "wings.fan_out.bridges.characters": REWRITES,
    "formats.bridges.made": WHOLE, "upstream.health.asker_of": SHORT,
    "wings.translate.messages_answer.MessageWriter.__init__": REWRITES,
    "wings.translate.responses_answer._new_object": REWRITES, "wings.stored.formats._ceilings": WHOLE,
    "wings.stored.formats._read": WHOLE, "wings.stored.formats._read_messages": WHOLE,
    "formats.anthropic.request._count": WHOLE,
    "formats.anthropic.request._message": WHOLE, "formats.anthropic.request._prompt": WHOLE,
    "formats.ceilings.added_tokens": FACTS,
    "formats.gemini.embeddings._changes": SHORT, "formats.gemini.embeddings._params": WHOLE,
    "formats.gemini.embeddings._read": WHOLE, "formats.gemini.embeddings._read_batch": WHOLE,
    "formats.gemini.generate._changes": REWRITES,
    "formats.gemini.request._prompt": WHOLE, "formats.gemini.request._read": WHOLE,
    "formats.gemini.request.config_names": SHORT,
    "formats.openai.completions._changes": SHORT, "formats.openai.completions._read_chat": WHOLE,
    "formats.openai.responses._changes": SHORT, "formats.openai.responses._read": WHOLE,
    "wings.media.images._params": WHOLE,
    "wings.media.speech.SpeechScan.__init__": SHORT, "wings.media.transcriptions": SHORT,
    "api.other_models.changes": REWRITES,
    "pipeline.request.changed_members": FACTS, "wings.queue.layers._identity": FACTS, "wings.queue.layers._size": FACTS,
    "quota.windows._may_use": FACTS, "quota.windows.variants_of": SHORT,
    "relay.charge.SentRequest.output_ceiling": SHORT, "relay.charge._is_echo": SHORT,
    "relay.charge.may_reason": SHORT, "relay.exchange.Exchange._scan_by": PASSES,
    "upstream.stickiness._prefix": FACTS, "upstream.stickiness.affinity": SHORT,
    "wings.stored.batch_file.BatchChecker._line": WHOLE, "wings.hedging.race.may_hedge": SHORT,
    "wings.stored.conversations._checked": WHOLE, "web.endpoints.DataPlane._check": PASSES,
    "web.endpoints.DataPlane._restrict_requests": FACTS, "wings.tasks.endpoints.PassthroughCalls._call": PASSES,
    "wings.tasks.endpoints.PassthroughCalls._read": FACTS, "wings.tasks.endpoints.PassthroughCalls._submit": FACTS,
    "web.endpoints.DataPlane._amended": PASSES, "wings.hooks.amending.BeforeHook._read": SHORT,
    "wings.hooks.amending.BeforeHook._shown": FACTS, "wings.hooks.policy.read_verdict": WHOLE,
    "wings.parameters.amending.Parameters.amend": FACTS, "wings.parameters.body._parted": FACTS,
    "wings.parameters.body.rewritten": SHORT, "wings.content.collecting._request": FACTS,
    "wings.plugins.ride.shown": FACTS, "accounting.call_record._of_served": SHORT,
}  # fmt: skip
"""Every function that reads the members or the text of a parsed body, and why stand-ins do not deceive it."""


HOLDERS = ("document", "asked", "given", "params", "body")
"""Names of what has the members of a body; only the first has its text, too."""


def found_in(tree: ast.AST, inside: str) -> Iterator[str]:
    """The functions below this node, by their full names, that read the members or the text of a body."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from found_in(node, f"{inside}.{node.name}")
            continue
        if isinstance(node, ast.Attribute) and node.attr in ("members", "text"):
            holder = ast.unparse(node.value).rpartition(".")[2]
            if holder in (HOLDERS if node.attr == "members" else HOLDERS[:1]):
                yield inside
        yield from found_in(node, inside)


def readers() -> set[str]:
    found: set[str] = set()
    for path in sorted(GATEWAY.rglob("*.py")):
        parts, code = path.relative_to(GATEWAY).with_suffix("").parts, path.read_text()
        if parts[0] != "simulator" and any(
            f"{holder}.members" in code or "document.text" in code for holder in HOLDERS
        ):
            found |= set(found_in(ast.parse(code), ".".join(parts).removesuffix(".__init__")))
    return found


def test_every_reader_of_a_body_is_known() -> None:
    found = readers()
    new, gone = sorted(found - READERS.keys()), sorted(READERS.keys() - found)
    assert not new, (
        f"{new} read the members or the text of a body. Of a body above {large_body.LARGE_BYTES} bytes, values above "
        f"{large_body.MAX_KEPT} characters are stand-ins, and there is no text: decide where the body is whole, or by "
        "`Document.large`. Then add the function to READERS with the reason, and to DECISIONS what it decides."
    )
    assert not gone, f"{gone} read no body any more: take them out of READERS."


TOOL = {"type": "web_search"}
ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL}}


@pytest.mark.parametrize(
    ("path", "members", "has_tools"),
    [
        ("responses", {"input": [{"type": "additional_tools", "role": "developer", "tools": [TOOL]}]}, True),
        ("responses", {"input": [{"type": "tool_search_output", "call_id": "c", "tools": [TOOL]}]}, True),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "tools"}]}]}, False),
        ("responses", {"input": [{"role": "user", "content": "a"}], "tools": [TOOL]}, True),
        ("messages", {"messages": [{"role": "user", "content": [ADDED]}]}, True),
        ("messages", {"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {"tools": [1], "tool": {"a": 1}}}]}]}, False),
        ("chat", {"messages": [{"role": "system", "content": "a", "Tools": [TOOL]}]}, True),
        ("chat", {"messages": [{"role": "tool", "tool_call_id": "c", "content": "tools"}]}, False),
    ],
)  # fmt: skip
def test_denied_tools_are_refused_wherever_they_are(path: str, members: dict[str, Any], *, has_tools: bool) -> None:
    """Items and blocks bring tools as well (openai-python, anthropic-sdk)."""
    limit = {"max_tokens": 9} if path == "messages" else {}
    for size in (1, large_body.LARGE_BYTES):
        raw = json.dumps({"model": "m", **limit, **members, "metadata": {"x": "y" * size}}).encode()
        read = table.read(path, raw)  # type: ignore[arg-type]
        if size > 1:
            read = large_body.from_brief(json.loads(large_body.brief(read)), [raw])
        refused = False
        try:
            validate.restrict(read, Limits(deny=("tools",)), Limits())
        except InvalidRequest as error:
            refused = error.param == "tools"
        assert refused == has_tools, (path, members, size)
        assert validate.restrict(read, Limits(deny=("seed",)), Limits()) == read


def test_a_new_reader_is_found() -> None:
    new = ast.parse("def decides(call):\n    document = call.params.document\n    return document.members")
    assert set(found_in(new, "relay.new")) == {"relay.new.decides"}


LONG = "x " * 35_000
"""More than `LARGE_BYTES`, and longer than every value that is kept."""
FEW_LONG = "x" * (large_body.MAX_KEPT + 1)
CHAT: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": LONG}]}
RESPONSE: dict[str, Any] = {"model": "m", "max_output_tokens": 16, "input": LONG}
MESSAGE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": LONG}]}
MCP = {"type": "mcp", "server_label": "a", "server_url": "https://a.example", "server_description": FEW_LONG}
FUNCTION = {"type": "function", "name": "f", "description": FEW_LONG}

BODIES: list[tuple[Endpoint, dict[str, Any]]] = [
    ("chat", CHAT), ("chat", CHAT | {"store": True}), ("chat", CHAT | {"service_tier": "flex"}),
    ("chat", CHAT | {"user": "user-" + FEW_LONG}), ("chat", CHAT | {"safety_identifier": "user-" + FEW_LONG}),
    ("chat", CHAT | {"metadata": {"tag": "a", "pad": FEW_LONG, "user_id": "user-" + FEW_LONG}}),
    ("chat", CHAT | {"reasoning": {"effort": "none", "pad": FEW_LONG}}),
    ("chat", CHAT | {"thinking": {"type": "enabled", **{f"pad{n}": LONG[:500] for n in range(99)}}}),
    ("chat", CHAT | {"prediction": {"type": "content", "content": FEW_LONG}}),
    ("chat", CHAT | {"n": 3, "stop": ["a", "b"], "logit_bias": {str(n): 1 for n in range(2000)}}),
    ("responses", RESPONSE), ("responses", RESPONSE | {"tools": [FUNCTION]}),
    ("responses", RESPONSE | {"tools": [FUNCTION, MCP]}),
    ("responses", RESPONSE | {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "pad": FEW_LONG}}]}),
    ("responses", RESPONSE | {"prompt": {"id": "pmpt_1", "variables": {"a": FEW_LONG}}}),
    ("responses", {"model": "m", "input": [{"role": "user", "content": LONG}, {"type": "x", "tools": [MCP]}]}),
    ("responses", {"model": "m", "input": [{"role": "user", "content": [
        {"type": "input_text", "text": LONG}, {"type": "input_file", "file_id": "file-1"}]}]}),
    ("messages", MESSAGE | {"mcp_servers": [{"type": "url", "url": "https://a.example", "name": FEW_LONG}]}),
    ("messages", MESSAGE | {"metadata": {"user_id": "u"}, "speed": "fast", "thinking": {"type": "disabled"}}),
]  # fmt: skip

RENAMED: dict[Endpoint, dict[str, Any]] = {
    "message_batches": {"requests": [{"custom_id": "a", "params": MESSAGE}]},
    "batch_embed_contents": {"requests": [{"model": "models/m", "content": {"parts": [{"text": LONG}]}}]},
    "count_content_tokens": {
        "generateContentRequest": {"model": "models/m", "contents": [{"role": "user", "parts": [{"text": LONG}]}]}
    },
}
"""Bodies that name the model inside them."""

LIMITS = Limits(n=2)


def call_of(endpoint: Endpoint, params: Params) -> Call:
    price = {"input": 1, "output": 2, "variants": {"flex": {"output": 1}, "fast": {"output": 9}}}
    model = Model.model_validate({"routes": [Route(upstream="u")], "price": price, "max_output_tokens": 50})
    return Call("r", 0.0, Key("k"), endpoint, params, model, label_model="m", arrived=0.0)


def restricted(call: Call) -> Any:
    try:
        return validate.restrict(call.params, LIMITS, LIMITS)[1:]
    except InvalidRequest as refused:
        return refused.message


def output_ceiling(call: Call) -> int:
    pieces = call.params.document.large.pieces if call.params.document.large else [call.params.document.text.encode()]
    return SentRequest(call, None, 9, pieces=list(pieces)).output_ceiling(0, reasons=False)


DECISIONS: dict[str, Callable[[Call], Any]] = {
    "hedge": race.may_hedge,
    "acts": lambda call: acts(call.params.document),
    "files": lambda call: sorted(file_ids.named_files(call.params.document)),
    "reasons": lambda call: charge.may_reason(call, ["gpt-4o"]),
    "money": lambda call: windows.most_nusd(call, 10, 5),
    "limits": restricted,
    "output": output_ceiling,
    "attribution": lambda call: attribution.attribution_of((), call.params.document.members, RecordSettings()),
}


def both(endpoint: Endpoint, body: dict[str, Any]) -> tuple[Call, Call]:
    """The call of a body as it is, and as the worker knows it from the process that reads long ones."""
    raw = json.dumps(body).encode()
    assert len(raw) > large_body.LARGE_BYTES
    whole = table.read(endpoint, raw)
    long = large_body.from_brief(json.loads(large_body.brief(whole)), [raw])
    assert long.document.large is not None
    return call_of(endpoint, whole), call_of(endpoint, long)


@pytest.mark.parametrize(("endpoint", "body"), BODIES, ids=[f"{name}{place}" for place, (name, _) in enumerate(BODIES)])
def test_decisions_are_the_same(endpoint: Endpoint, body: dict[str, Any]) -> None:
    whole, long = both(endpoint, body)
    assert {name: decide(long) for name, decide in DECISIONS.items()} == {
        name: decide(whole) for name, decide in DECISIONS.items()
    }
    assert ceilings.added_tokens(long.params) >= ceilings.added_tokens(whole.params)


def test_every_format_that_names_its_model_inside_is_here() -> None:
    assert {name for name, spec in table.FORMATS.items() if spec.rename is not None} == RENAMED.keys()


@pytest.mark.parametrize("endpoint", RENAMED)
def test_only_a_short_body_gets_its_models_name_in_the_worker(endpoint: Endpoint) -> None:
    whole, long = both(endpoint, RENAMED[endpoint])
    own, other = Route(upstream="u", model="m"), Route(upstream="u", model="another")
    changes = changed_members(whole, (), other, Capabilities())
    assert json.dumps(changes).count("another") == 1
    assert [changed_members(*each, Capabilities()) for each in ((long, (), other), (long, (), own))] == [{}, {}]
    assert changed_members(whole, (), own, Capabilities()) == {}


@pytest.fixture(scope="module")
def other_upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, other_upstream: ScriptedUpstream
) -> Gateway:
    upstreams = {"main": {"base_url": shared_upstream.url}, "second": {"base_url": other_upstream.url}}
    routes = [{"upstream": name, "priority": place} for place, name in enumerate(upstreams, 1)]
    model = {"routes": routes, "endpoints": ["responses"], "hedge_after": "50ms", "max_output_tokens": 50}
    return start_shared_gateway(settings("", upstreams=upstreams, models={"hedged": model}))


USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
GOOD = ok_json({"id": "resp_1", "status": "completed", "model": "m", "output": [], "usage": USAGE})
KINDS = {
    "tool": {"input": LONG, "tools": [FUNCTION, MCP]},
    "tool of an item": {"input": [{"role": "user", "content": LONG}, {"type": "additional_tools", "tools": [MCP]}]},
}


PLAIN = {"input": LONG, "tools": [FUNCTION]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_body_with_a_tool_that_acts_goes_to_one_upstream(
    gateway: Gateway, upstream: ScriptedUpstream, other_upstream: ScriptedUpstream, kind: str
) -> None:
    """A call without such a tool begins later and goes to the second one, for which the first call had more time."""
    let_go = threading.Event()

    async def held(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait, 60)
        await GOOD(wire)

    upstream.answer_with(held, silent)
    other_upstream.answer_with(GOOD)
    hits = upstream.hits, other_upstream.hits
    try:
        acting = Under(lambda: ask(gateway, KINDS[kind]))
        eventually(lambda: upstream.hits == hits[0] + 1)
        plain = ask(gateway, PLAIN)
    finally:
        let_go.set()
    assert (plain.status, plain.headers["x-gateway-attempts"]) == (200, "2")
    got = acting.end()
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "1")
    assert (upstream.hits, other_upstream.hits) == (hits[0] + 2, hits[1] + 1)


def ask(gateway: Gateway, body: dict[str, Any]) -> Answer:
    return gateway.post("/v1/responses", {"model": "hedged", "store": False, **body})


HEAVY: dict[str, Callable[[int], Any]] = {
    "objects": lambda count: [{"x": 1}] * count,
    "empty": lambda count: [{}, []] * count,
    "lists": lambda count: [[[[0]]]] * (count // 3),
    "names": lambda count: {f"name {place}": 0 for place in range(count)},
}


@pytest.mark.parametrize("kind", HEAVY)
def test_files_are_looked_for_in_few_steps_for_each_object(kind: str) -> None:
    """24 MB of the smallest objects took longer than a body may be read, and got the answer of a busy gateway."""
    count, calls = 3_000, 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    members = {"heavy": HEAVY[kind](count), "file_id": "file-1"}
    sys.setprofile(note)
    try:
        found = [*file_ids.ids_in(members)]
    finally:
        sys.setprofile(None)
    assert found == ["file-1"]
    assert calls <= 12 * count, calls / count


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"x":1},', b"[[[]]],", b"1,", b'"",'])
def test_a_body_of_too_much_structure_is_refused_before_it_is_parsed(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer than a body may, and long bodies of others would wait."""
    monkeypatch.setattr(json_document, "_DECODER", None)
    many = unit * (json_document.MAX_MARKS // sum(map(unit.count, (b"[", b"{", b":", b","))) + 1)
    with pytest.raises(InvalidRequest, match="more than 2000000 brackets, colons and commas"):
        json_document.parse(b'{"model":"m","heavy":[' + many + b"0]}")


def test_a_body_of_too_many_parameters_is_refused_before_a_rule_looks_at_it() -> None:
    """Each took 12 microseconds, and was refused at the end."""
    members = {str(number): 1 for number in range(json_document.MAX_PARAMETERS)}
    assert json_document.parse(json.dumps(members).encode()).members == members
    with pytest.raises(InvalidRequest, match="more than 8192 parameters"):
        json_document.parse(json.dumps(members | {"x": 1}).encode())


def test_brackets_in_texts_are_no_arrays() -> None:
    text = "[{:," * json_document.MAX_MARKS
    assert json_document.parse(json.dumps({"text": text}).encode()).members == {"text": text}
