"""What users of other gateways complained of, each with its tests here.

`COMPLAINTS` names the tests by number; those that no other file had are below, with the number in their names.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.formats.table import FORMATS
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, answer, chunk, ok_json

from .client import Answer
from .gateway_process import Gateway, eventually, key, model, secret, settings

HERE = Path(__file__).parent.parent
OURS = "flows/test_complaints.py"


class Complaint(NamedTuple):
    """A fault of another gateway, where it was reported, and the tests of it: `file::function` below tests/."""

    what: str
    reported: str
    tests: tuple[str, ...]


COMPLAINTS: dict[int, Complaint] = {
    1: Complaint(
        "usage inside `response` was not seen, and a close behind the end was a client that left: nothing was charged",
        "rainway-ai-gateway/ai-gateway-api#195, bfenetworks/bfe#1381",
        (f"{OURS}::test_1_a_client_that_closes_behind_the_end_is_charged_the_report",
         "flows/test_responses.py::test_a_stream"),
    ),
    2: Complaint(
        "incomplete and failed responses were charged nothing", "envoyproxy/ai-gateway#2184, openclaw/openclaw#101608",
        ("flows/test_responses.py::test_a_stream",
         "flows/test_responses.py::test_a_failed_response_is_charged_and_reported_once",
         "flows/test_responses.py::test_a_failure_without_usage_is_charged_what_was_shown",
         f"{OURS}::test_2_an_incomplete_response_without_usage_is_charged_what_was_shown"),
    ),
    3: Complaint(
        "a key read, continued and cancelled another key's responses; those of streams had no owner",
        "BerriAI/litellm#15757, #39548, #38320",
        ("wings/stored/test_stored_responses.py::test_another_key_finds_nothing",
         "wings/stored/test_stored_responses.py::test_a_streamed_one_is_bound_before_its_id_is_seen",
         "flows/test_background_responses.py::test_one_that_is_cancelled_is_estimated",
         "flows/test_background_streams.py::test_another_key_cannot_resume_it",
         "wings/stored/test_conversations.py::test_another_key_finds_nothing",
         "flows/test_item_references.py::test_another_keys_items_are_not_found"),
    ),
    4: Complaint(
        "a background call ended with its client's connection", "BerriAI/litellm#36275",
        ("flows/test_background_responses.py::test_a_client_that_leaves_at_once",
         "flows/test_background_responses.py::test_it_is_reserved_until_it_ends_and_charged_once",
         "flows/test_background_streams.py::test_its_client_leaves",
         "flows/test_background_streams.py::test_its_client_leaves_before_the_first_event",
         "flows/slow/test_background_kills.py::test_a_gateway_is_killed_while_it_streams"),
    ),
    5: Complaint(
        "a cut stream had no terminal event, so that Codex asked five times more",
        "openai/codex#41340, caidaoli/ccLoad#59",
        ("flows/test_responses.py::test_a_stream_that_breaks_ends_with_one_failure",
         "flows/slow/test_codex.py::test_a_stream_that_breaks_is_asked_for_once_more",
         f"{OURS}::test_5_a_cut_stream_is_one_call_of_the_upstream"),
    ),
    6: Complaint(
        "compressed bodies were refused, small ones forwarded compressed",
        "james-6-23/codex2api#388, BYK/loreai#1049, zyycn/codex-proxy-rs#66",
        ("flows/test_compressed_requests.py::test_a_compressed_body_is_carried_without_its_coding",
         "flows/test_compressed_requests.py::test_a_bomb_is_refused",
         "flows/test_compressed_requests.py::test_a_damaged_body_is_refused",
         "flows/test_compressed_requests.py::test_other_codings_are_refused",
         f"{OURS}::test_6_identity_is_no_coding"),
    ),
    7: Complaint(
        "a WebSocket was refused by 404, and clients repeated it", "BYK/loreai#515, openai/codex#19821",
        ("flows/test_responses.py::test_a_socket_is_refused_by_426_and_a_list_by_405",),
    ),
    8: Complaint(
        "a budget was checked on one format only", "headroomlabs-ai/headroom#3579",
        (f"{OURS}::test_8_a_spent_key_is_refused_on_every_path",),
    ),
    9: Complaint(
        "cache reads of streams were charged as input, writes twice, and those of an hour as those of 5 minutes",
        "BerriAI/litellm#11789, BerriAI/litellm#9812, maximhq/bifrost#5510, Wei-Shaw/sub2api#5700",
        (f"{OURS}::test_9_a_stream_costs_what_its_plain_twin_costs",
         "formats/test_messages_usage.py::test_reports_of_a_stream_are_cumulative"),
    ),
    10: Complaint(
        "pings were swallowed or late, so that clients gave up", "bitrouter/bitrouter#422, BerriAI/litellm#39431",
        ("flows/test_message_silence.py::test_silence_is_filled_with_pings",
         "flows/test_message_silence.py::test_pings_of_the_upstream_do_not_keep_it_alive",
         "formats/test_messages_scan.py::test_pings_and_comments_pass_and_are_no_sign_of_life",
         "flows/test_responses.py::test_a_silent_upstream_is_kept_alive_by_comments_until_the_error"),
    ),
    11: Complaint(
        "unknown members were refused or dropped",
        "anthropics/claude-code#21612, anthropics/claude-code#31033, maximhq/bifrost#5684, BerriAI/litellm#26240",
        (f"{OURS}::test_11_what_the_gateway_does_not_know_goes_up_as_it_came",
         "flows/test_messages.py::test_request_goes_up_as_it_came"),
    ),
    12: Complaint(
        "count_tokens was answered 404, or 500 in OpenAI's shape",
        "anthropics/claude-code#12208, maximhq/bifrost#2902",
        ("flows/test_messages.py::test_tokens_are_counted_as_a_request_without_tokens",
         "flows/test_messages.py::test_no_upstream_counts_tokens"),
    ),
    13: Complaint(
        "a model named inside a tool was neither mapped nor checked, nor had its price; `tool_choice` was rewritten",
        "maximhq/bifrost#3383, maximhq/bifrost#3596",
        ("flows/test_messages.py::test_models_named_inside_a_request_are_checked_and_mapped",
         "flows/test_messages.py::test_iterations_of_another_model_have_its_price",
         "flows/test_messages.py::test_fallbacks_of_another_shape_are_refused",
         "flows/test_responses.py::test_models_of_tools_and_of_the_moderation_are_mapped",
         "flows/test_responses.py::test_models_that_the_key_or_the_upstream_has_not_are_refused",
         f"{OURS}::test_11_what_the_gateway_does_not_know_goes_up_as_it_came"),
    ),
    14: Complaint(
        "an error inside a 200 before any content was relayed as a success", "musistudio/claude-code-router#1759",
        ("flows/test_faults.py::test_client_sees_the_truth_and_the_next_call_is_good",
         "flows/test_responses.py::test_an_error_before_anything_else_is_a_status",
         "flows/test_messages.py::test_an_error_before_the_first_event_has_the_type_of_the_api"),
    ),
    15: Complaint(
        "a large chunk of Gemini's was cut inside its JSON; thoughts and images were left out or priced as text",
        "BerriAI/litellm#30471, #15779, #17410, #18980",
        ("flows/slow/test_gemini_cuts.py::test_cuts_of_every_recorded_stream",
         "formats/test_gemini_scan.py::test_a_long_chunk_passes_in_pieces",
         "flows/test_gemini.py::test_a_long_chunk_is_read_on_its_way",
         f"{OURS}::test_15_thoughts_and_images_have_their_prices"),
    ),
    16: Complaint(
        "transcriptions cost nothing: an output price of 0 hid that of the input, and texts have no usage",
        "BerriAI/litellm#36914, #19154, #6509",
        (f"{OURS}::test_16_an_output_that_is_free_hides_no_other_price",
         "wings/media/test_audio_forms.py::test_a_form_is_forwarded_as_it_is_and_charged",
         "wings/media/test_audio_forms.py::test_text_is_charged_by_the_length_of_the_file",
         "wings/media/test_audio_forms.py::test_the_length_of_a_file_without_one_is_estimated"),
    ),
    17: Complaint(
        "images were charged as text, texts as images, prompts not at all, unknown models nothing",
        "BerriAI/litellm#31142, #18541, #21902, #13847, #26863",
        (f"{OURS}::test_17_text_and_images_have_a_price_each",
         f"{OURS}::test_17_a_model_without_a_price_has_an_unknown_cost",
         "wings/media/test_image_forms.py::test_a_stream_with_partial_images_is_charged_by_its_last_event"),
    ),
    18: Complaint(
        "rerank cost nothing or 1000 times too much: no usage, or units under the wrong price",
        "BerriAI/litellm#13797, #36185, #35194, maximhq/bifrost#4321, metadist/synaplan#1778",
        ("flows/test_moderations_and_reranks.py::test_is_forwarded_as_it_is_and_charged",
         "flows/test_moderations_and_reranks.py::test_large_bodies_are_forwarded_as_they_are_and_charged"),
    ),
    19: Complaint(
        "batches were charged to nobody's key, at each poll or never; their files were open to all",
        "BerriAI/litellm#36071, #39980, #30635, #34092",
        ("flows/test_batches.py::test_a_batch_is_charged_once_by_its_lines",
         "flows/test_batches.py::test_ids_belong_to_the_key"),
    ),
    20: Complaint(
        "the tier of long prompts in batches, and the tier and the speed that an answer names, were ignored",
        "BerriAI/litellm#39861",
        (f"{OURS}::test_20_the_service_that_the_answer_names_is_charged",
         "wings/stored/test_batch_results.py::test_long_prompts_are_priced_one_by_one",
         "flows/test_messages.py::test_a_region_has_its_price"),
    ),
    21: Complaint(
        "a session over a WebSocket had no model and no cost; later models were unchecked; the upstream's close stayed "
        "unsaid; a quota was overdrawn within one session",
        "BerriAI/litellm#40010, #39851, pollinations/pollinations#11443",
        ("wings/realtime/test_realtime.py::test_events_are_passed_on_and_each_response_is_charged",
         "wings/realtime/test_realtime.py::test_what_a_session_may_not_ask_for_is_an_error_event",
         "wings/realtime/test_realtime.py::test_the_upstreams_close_reaches_the_client",
         "wings/realtime/test_realtime.py::test_a_quota_that_is_spent_ends_the_session"),
    ),
    22: Complaint(
        "a failed task was given back never or twice; errors in words inside a 200 were charged as images",
        "QuantumNous/new-api#2050, #6074, coaidev/coai#14",
        ("wings/tasks/slow/test_task_rows.py::test_a_failed_task_is_given_back_once",
         "wings/tasks/slow/test_task_kills.py::test_two_gateways_and_their_clients_settle_once",
         "wings/tasks/slow/test_task_faults.py::test_what_costs_nothing",
         "wings/media/test_image_forms.py::test_answers_without_an_image"),
    ),
    23: Complaint(
        "the cancellation of a repeated task settled an earlier one; work was begun before it was charged",
        "ddcat-ai/open-ai-canvas#477, edenartlab/eve#570",
        ("flows/test_background_responses.py::test_a_retried_one_is_cancelled_without_the_others",
         "wings/tasks/test_passthrough.py::test_the_quota_is_drawn_before_the_upstream_is_asked",
         "wings/tasks/slow/test_task_kills.py::test_a_gateway_is_killed"),
    ),
    24: Complaint(
        "the list of models refused a user's key, or showed all models", "BerriAI/litellm#1062",
        ("flows/test_messages.py::test_models_are_listed_in_the_shape_that_the_client_knows",
         "flows/test_keys.py::test_models_that_a_key_may_use"),
    ),
    25: Complaint(
        "a spent key of an upstream was asked again and again, against what bound ids need",
        "tingly-dev/tingly-box#1011",
        ("upstream/test_credentials.py::test_a_refused_key_has_a_cooldown_while_others_are_used_in_turn",
         "flows/slow/test_one_bad_channel.py::test_the_resellers_own_refusal_concerns_every_model",
         "wings/stored/test_stored_responses.py::test_a_continuation_never_goes_elsewhere",
         "wings/stored/test_stored_responses.py::test_it_is_continued_where_it_is_kept",
         "flows/test_responses.py::test_a_conversation_with_encrypted_parts_stays_with_one_account"),
    ),
    26: Complaint(
        "a zero where nothing was measured became a free call", "bircex/llmr#10",
        (f"{OURS}::test_26_an_answer_without_a_report_is_not_free",),
    ),
    27: Complaint(
        "a wrong base URL was answered by a bare 404", "router-for-me/CLIProxyAPI#2410",
        ("flows/test_messages.py::test_paths_that_are_not_served_name_the_remedy",
         "flows/test_messages.py::test_unknown_paths_get_an_error_in_the_client_s_format"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", COMPLAINTS)
def test_every_complaint_has_its_tests(number: int) -> None:
    for name in COMPLAINTS[number].tests:
        file, _, function = name.partition("::")
        tree = ast.parse((HERE / file).read_text())
        functions = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert function in functions, name


def test_no_complaint_is_left_out() -> None:
    assert sorted(COMPLAINTS) == list(range(1, 28))


# ----------------------------------------------------------------------------------------------- those of no other file

MODEL, OF_ALL = "under-test", "of-all-formats"
GEMINI, SCRIBE, PAINTER, UNPRICED = "gemini-paints", "scribe", "painter", "painter-without-a-price"
MEDIA: dict[str, dict[str, Any]] = {
    GEMINI: {"endpoints": ["generate_content"], "price": {"input": 2, "image_in": 3, "output": 8, "image_out": 30}},
    SCRIBE: {"endpoints": ["transcriptions"], "price": {"input": 2.5, "audio_in": 6, "output": 0}},
    PAINTER: {"endpoints": ["images"], "price": {"input": 5, "image_in": 10, "output": 20, "image_out": 40}},
    UNPRICED: {"endpoints": ["images"]},
}
PRICE = {
    "input": 2, "cached_input": 0.5, "cache_write": 2.5, "cache_write_1h": 4, "output": 8,
    "variants": {"priority": {"input": 20, "output": 80}},
}  # fmt: skip
RESPONSES_USAGE = {
    "input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100,
    "input_tokens_details": {
        "cached_tokens": 400, "cache_write_tokens": 200, "cache_write_tokens_details": {"ttl_12h_tokens": 50},
    },
}  # fmt: skip
MESSAGES_USAGE = {
    "input_tokens": 400, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 200, "output_tokens": 100,
    "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50},
}  # fmt: skip
COST = (400 * 2 + 400 * 0.5 + 150 * 2.5 + 50 * 4 + 100 * 8) / 1e6
"""Of either."""
TEXT = "All is said."


class Api(NamedTuple):
    """One of the two formats."""

    path: str
    asked: dict[str, Any]
    usage: dict[str, Any]


APIS = {
    "responses": Api("/v1/responses", {"input": "Hello", "store": False, "max_output_tokens": 500}, RESPONSES_USAGE),
    "messages": Api(
        "/v1/messages", {"max_tokens": 500, "messages": [{"role": "user", "content": "Hello"}]}, MESSAGES_USAGE
    ),
}  # fmt: skip
each_api = pytest.mark.parametrize("name", APIS)


def plain(name: str, usage: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A whole answer."""
    if name == "responses":
        return api.response([api.message(TEXT)], usage, **more)
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": TEXT}], "usage": usage,
    } | more  # fmt: skip


def events(name: str, usage: dict[str, Any] | None, **more: Any) -> list[bytes]:
    """The same as a stream; the last event ends it."""
    whole = plain(name, usage, **more)
    if name == "responses":
        return list(map(api.one, api.events(whole["output"], whole)))
    at_first = None if usage is None else usage | {"output_tokens": 1}
    at_last = {"output_tokens": usage["output_tokens"]} if usage else {}
    return list(map(api.one, [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None, "usage": at_first}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": at_last},
        {"type": "message_stop"},
    ]))  # fmt: skip


def streamed(parts: list[bytes], *, is_cut: bool = False) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + b"".join(map(chunk, parts)) + (b"" if is_cut else b"0\r\n\r\n"))
        if is_cut:
            wire.close()

    return behaviour


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    every = sorted({"completions", "chat", "embeddings", "messages", "responses", "moderations", "rerank", "images",
                    "speech", "transcriptions", "translations", "image_edits", "image_variations",
                    "generate_content", "embed_content"})  # fmt: skip
    spent = [{"requests": 1, "per": "month"}]
    config = settings(
        shared_upstream.url,
        keys=[key("alice"), *[key(f"spent-{name}", quotas=spent) for name in FORMATS]],
        upstreams={"main": {"capabilities": {"messages": True, "generate_content": True}}},
        files={"upstream": "main"},
    )
    priced = model("responses", price=PRICE) | {"endpoints": ["responses", "messages"], "max_attempts": 1}
    media = {name: {"routes": [{"upstream": "main"}], "max_attempts": 1, **rest} for name, rest in MEDIA.items()}
    return start_shared_gateway(
        config | {"models": {MODEL: priced, OF_ALL: model("chat") | {"endpoints": every}, **media}}
    )


def post(gateway: Gateway, name: str, **members: Any) -> Answer:
    return gateway.post(APIS[name].path, {"model": MODEL, **APIS[name].asked, **members})


@each_api
def test_1_a_client_that_closes_behind_the_end_is_charged_the_report(
    gateway: Gateway, upstream: ScriptedUpstream, name: str
) -> None:
    async def stays_open(wire: Wire) -> None:
        await wire.write(CHUNKED + b"".join(map(chunk, events(name, APIS[name].usage))))
        await wire.until_gone()

    upstream.answer_with(stays_open)
    end = b"response.completed" if name == "responses" else b"message_stop"
    with gateway.connect() as client:
        body = json.dumps({"model": MODEL, **APIS[name].asked, "stream": True}).encode()
        client.post(APIS[name].path, body, secret("alice"))
        head = client.read_head()
        while end not in client.read_chunk():
            pass
    record = gateway.call(head.id)
    assert (record["ended"], record["usage_source"]) == ("done", "reported")
    assert record["cost_usd"] == pytest.approx(COST, abs=1e-12)


@each_api
def test_5_a_cut_stream_is_one_call_of_the_upstream(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(streamed(events(name, APIS[name].usage)[:3], is_cut=True))
    got = post(gateway, name, stream=True)
    last = got.body.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert last.startswith(b"event: response.failed\n" if name == "responses" else b"event: error\n")
    assert upstream.hits == 1
    assert gateway.call(got.id)["attempts"] == 1


@each_api
def test_6_identity_is_no_coding(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(ok_json(plain(name, APIS[name].usage)))
    body = json.dumps({"model": MODEL, **APIS[name].asked}).encode()
    assert gateway.post(APIS[name].path, body, headers={"Content-Encoding": "identity"}).status == 200
    assert upstream.requests[0].body == body
    assert "content-encoding" not in upstream.requests[0].headers


BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "Hello"},
    "chat": {"messages": [{"role": "user", "content": "Hello"}]},
    "embeddings": {"input": "Hello"},
    "messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]},
    "count_tokens": {"messages": [{"role": "user", "content": "Hello"}]},
    "responses": {"input": "Hello"},
    "input_tokens": {"input": "Hello"},
    "compact": {"input": "Hello"},
    "moderations": {"input": "Hello"},
    "rerank": {"query": "Hello", "documents": ["Hello"]},
    "images": {"prompt": "Hello"},
    "speech": {"input": "Hello", "voice": "alloy"},
    "generate_content": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "count_content_tokens": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "embed_content": {"content": {"parts": [{"text": "Hello"}]}},
    "batch_embed_contents": {"requests": [{"content": {"parts": [{"text": "Hello"}]}}]},
    "message_batches": {
        "requests": [
            {
                "custom_id": "a",
                "params": {"model": OF_ALL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]},
            }
        ]
    },
    "batches": {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"},
}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": OF_ALL, "input": "Hello"}}
FORMS: dict[str, list[tuple[str, str | bytes]]] = {
    "transcriptions": [("file", wav(0.1))],
    "translations": [("file", wav(0.1))],
    "image_edits": [("image", b"picture"), ("prompt", "Hello")],
    "image_variations": [("image", b"picture")],
}
"""Parts of the formats whose requests are forms."""


@pytest.mark.parametrize(
    "name", [name for name in FORMATS if name != "realtime"]
)  # tests/wings/realtime/test_realtime.py
def test_8_a_spent_key_is_refused_on_every_path(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    """A format that is new has to stand in `BODIES` or `FORMS`."""
    upstream.answer_with(answer(b"{}"))
    who = f"spent-{name}"
    if name == "batches":
        upstream.answer_with(ok_json({"id": BODIES[name]["input_file_id"]}), answer(b"{}"))
        upload = form(("purpose", "batch"), ("file", json.dumps(LINE).encode()))
        assert gateway.post("/v1/files", upload, key=who, headers=TYPE).status == 200
    gateway.post("/v1/chat/completions", {"model": OF_ALL, **BODIES["chat"]}, key=who)
    before = upstream.hits
    for path in [path.replace("{model}", OF_ALL) for path in (FORMATS[name].path, *FORMATS[name].more_paths)]:
        if name in FORMS:
            refused = gateway.post(path, form(("model", OF_ALL), *FORMS[name]), key=who, headers=TYPE)
        else:
            members = BODIES[name] if FORMATS[name].has_model_in_path else {"model": OF_ALL} | BODIES[name]
            refused = gateway.post(path, members, key=who)
        assert refused.status == 429, (path, refused)
        assert b"exceeded the quota of your key" in refused.body
    assert upstream.hits == before


@each_api
def test_9_a_stream_costs_what_its_plain_twin_costs(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    usage = APIS[name].usage
    upstream.answer_with(ok_json(plain(name, usage)), streamed(events(name, usage)))
    records = [gateway.call(post(gateway, name, stream=is_stream).id) for is_stream in (False, True)]
    for record in records:
        assert record["cost_usd"] == pytest.approx(COST, abs=1e-12)
        assert (record["prompt_tokens"], record["cached_tokens"], record["completion_tokens"]) == (1000, 400, 100)
        assert record["units"] == {"cache_write": 150, "cache_write_1h": 50}


@each_api
def test_11_what_the_gateway_does_not_know_goes_up_as_it_came(
    gateway: Gateway, upstream: ScriptedUpstream, name: str
) -> None:
    new: dict[str, Any] = {
        "a_member_of_next_year": {"x": [1.50, None]},
        "context_management": {"edits": [{"type": "clear_of_next_year"}]},
        "tools": [{
            "type": "function" if name == "responses" else "custom", "name": "f", "defer_loading": True, "strict": None,
            "input_schema": {"type": "object"}, "parameters": {"type": "object"}, "provider_specific_fields": {"a": 1},
        }],
        "tool_choice": {"type": "web_search_of_next_year"},
    }  # fmt: skip
    if name == "responses":
        new["context_management"] = [{"type": "compaction_of_next_year", "threshold": 1}]
        new["input"] = [{"role": "user", "content": "Hi", "phase": "x"}, {"type": "item_of_next_year", "z": {}}]
    else:
        new["messages"] = [{"role": "user", "content": [{"type": "block_of_next_year", "z": {}}]}]
    upstream.answer_with(ok_json(plain(name, APIS[name].usage)))
    body = json.dumps({"model": MODEL, **APIS[name].asked, **new}, indent=1).encode()
    got = gateway.post(APIS[name].path, body)
    assert got.status == 200, got
    assert upstream.requests[0].body == body


@pytest.mark.parametrize("is_stream", [False, True])
def test_2_an_incomplete_response_without_usage_is_charged_what_was_shown(
    gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool
) -> None:
    end = plain("responses", None, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    parts = [api.one(each) for each in api.events(end["output"], end, "response.incomplete")]
    upstream.answer_with(streamed(parts) if is_stream else ok_json(end))
    got = post(gateway, "responses", stream=is_stream)
    assert got.status == 200
    record = gateway.call(got.id)
    assert (record["ended"], record["usage_source"]) == ("done", "estimated")
    assert record["prompt_tokens"] >= 1
    assert record["completion_tokens"] >= 3
    assert record["cost_usd"] > 0


@each_api
@pytest.mark.parametrize("is_stream", [False, True])
def test_20_the_service_that_the_answer_names_is_charged(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, is_stream: bool
) -> None:
    usage: dict[str, Any] = {"input_tokens": 100, "output_tokens": 10}
    more = {"service_tier": "priority"} if name == "responses" else {}
    if name == "messages":
        usage["service_tier"] = "priority"
    upstream.answer_with(streamed(events(name, usage, **more)) if is_stream else ok_json(plain(name, usage, **more)))
    record = gateway.call(post(gateway, name, service_tier="auto", stream=is_stream).id)
    assert record["cost_usd"] == pytest.approx((100 * 20 + 10 * 80) / 1e6, abs=1e-12)
    assert record["price_variant"] == "priority"


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent?alt=sse"])
def test_15_thoughts_and_images_have_their_prices(gateway: Gateway, upstream: ScriptedUpstream, method: str) -> None:
    usage = {
        "promptTokenCount": 1000, "candidatesTokenCount": 1300, "thoughtsTokenCount": 60, "totalTokenCount": 2360,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 800}, {"modality": "IMAGE", "tokenCount": 200}],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
    }  # fmt: skip
    candidate = {"content": {"parts": [{"text": TEXT}], "role": "model"}, "finishReason": "STOP", "index": 0}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": GEMINI}
    event = b"data: " + json.dumps(whole).encode() + b"\r\n\r\n"
    upstream.answer_with(streamed([event]) if "stream" in method else ok_json(whole))
    asked = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
    got = gateway.post(f"/v1beta/models/{GEMINI}:{method}", asked)
    expected = 800 * 2 + 200 * 3 + (10 + 60) * 8 + 1290 * 30
    assert gateway.call(got.id)["cost_usd"] == pytest.approx(expected / 1e6, abs=1e-12)


def test_16_an_output_that_is_free_hides_no_other_price(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {
        "type": "tokens", "input_tokens": 30, "input_token_details": {"audio_tokens": 25, "text_tokens": 5},
        "output_tokens": 10, "total_tokens": 40,
    }  # fmt: skip
    upstream.answer_with(ok_json({"text": TEXT, "usage": usage}))
    got = gateway.post("/v1/audio/transcriptions", form(("model", SCRIBE), ("file", wav(0.1))), headers=TYPE)
    assert gateway.call(got.id)["cost_usd"] == pytest.approx((5 * 2.5 + 25 * 6) / 1e6, abs=1e-12)


PAINTED = {
    "created": 1, "data": [{"b64_json": "AAAA"}],
    "usage": {
        "input_tokens": 300, "input_tokens_details": {"text_tokens": 100, "image_tokens": 200}, "output_tokens": 1050,
        "output_tokens_details": {"text_tokens": 50, "image_tokens": 1000}, "total_tokens": 1350,
    },
}  # fmt: skip


def test_17_text_and_images_have_a_price_each(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(PAINTED))
    got = gateway.post("/v1/images/generations", {"model": PAINTER, "prompt": "a cat"})
    expected = 100 * 5 + 200 * 10 + 50 * 20 + 1000 * 40
    assert gateway.call(got.id)["cost_usd"] == pytest.approx(expected / 1e6, abs=1e-12)


def test_17_a_model_without_a_price_has_an_unknown_cost(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(PAINTED))
    got = gateway.post("/v1/images/generations", {"model": UNPRICED, "prompt": "a cat"})
    assert (got.status, gateway.call(got.id)["cost_usd"]) == (200, None)


@each_api
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "reported", [None, {}, {"input_tokens": 0, "output_tokens": 0}], ids=["none", "empty", "zeros"]
)
def test_26_an_answer_without_a_report_is_not_free(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, is_stream: bool, reported: dict[str, Any] | None
) -> None:
    if is_stream and reported == {}:
        reported = {"output_tokens": None}
    upstream.answer_with(streamed(events(name, reported)) if is_stream else ok_json(plain(name, reported)))
    got = post(gateway, name, stream=is_stream)
    assert got.status == 200
    record = eventually(lambda: gateway.call(got.id))
    assert record["usage_source"] == "estimated"
    assert record["prompt_tokens"] >= 1
    assert record["completion_tokens"] >= 3
    assert record["cost_usd"] > 0
