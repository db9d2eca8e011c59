"""LiteLLM's translations between Responses, Messages and chat, asked by a test: litellm_oracle.py <cases >answers

Runs on LiteLLM's own environment (.ci/servers). Cases are those of tests/recorded/translate; each answer is what
LiteLLM would ask the chat upstream, and what the client gets for the upstream's plain answer, or of a case with
`chunks` the data of its events. Chunks come over HTTP, because LiteLLM's own reading of a chat stream belongs to the
translation.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import litellm
from litellm import ModelResponse
from litellm.llms.anthropic.pass_through.adapters.transformation import (
    AnthropicAdapter,
    LiteLLMAnthropicMessagesAdapter,
)
from litellm.responses.litellm_completion_transformation.streaming_iterator import LiteLLMCompletionStreamingIterator
from litellm.responses.litellm_completion_transformation.transformation import LiteLLMCompletionResponsesConfig


def responses(request, answer=None, chunks=()):
    config = LiteLLMCompletionResponsesConfig
    more = {name: value for name, value in request.items() if name not in ("model", "input", "stream")}
    sent = config.transform_responses_api_request_to_chat_completion_request(
        model=request["model"], input=request["input"], responses_api_request=more, custom_llm_provider="openai"
    )
    if chunks:
        return sent, responses_stream(request, chunks)
    shown = config.transform_chat_completion_response_to_responses_api_response(
        request_input=request["input"], responses_api_request=more, chat_completion_response=ModelResponse(**answer)
    )
    return sent, shown.model_dump(mode="json")


def messages(request, answer=None, chunks=()):
    adapter = LiteLLMAnthropicMessagesAdapter()
    sent, names = adapter.translate_anthropic_to_openai(anthropic_message_request=request)
    if chunks:
        return sent, messages_stream(request, chunks)
    shown = adapter.translate_openai_response_to_anthropic(response=ModelResponse(**answer), tool_name_mapping=names)
    return sent, dict(shown)


class Upstream(BaseHTTPRequestHandler):
    """Answers each request with the answer or the chunks of the case that is asked about."""

    answer = None
    chunks = ()
    asked = None

    def do_POST(self):
        Upstream.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.answer else "text/event-stream")
        self.end_headers()
        if self.answer:
            self.wfile.write(json.dumps(self.answer).encode())
            return
        for chunk in self.chunks:
            if "type" in chunk:
                self.wfile.write(f"event: {chunk['type']}\n".encode())
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if not any("type" in chunk for chunk in self.chunks):
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


def streamed_chat(chunks):
    """LiteLLM's stream of a chat answer."""
    Upstream.answer, Upstream.chunks = None, chunks
    return litellm.completion(
        model="openai/m", messages=[{"role": "user", "content": "Hello"}], stream=True, api_key="none",
        api_base=f"http://127.0.0.1:{SERVER.server_port}/v1", stream_options={"include_usage": True},
    )  # fmt: skip


def responses_stream(request, chunks):
    more = {name: value for name, value in request.items() if name not in ("model", "input")}
    events = LiteLLMCompletionStreamingIterator(
        model="m", litellm_custom_stream_wrapper=streamed_chat(chunks), request_input=request["input"],
        responses_api_request=more, custom_llm_provider="openai",
    )  # fmt: skip
    return [event.model_dump(mode="json") for event in events]


def messages_stream(request, chunks):
    _, names = LiteLLMAnthropicMessagesAdapter().translate_anthropic_to_openai(anthropic_message_request=request)
    events = AnthropicAdapter().translate_completion_output_params_streaming(
        completion_stream=streamed_chat(chunks), model="m", tool_name_mapping=names, is_async=False
    )
    lines = b"".join(events).decode().splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


def chat(request, answer=None, chunks=()):
    """Chat of an upstream with Messages: LiteLLM translates for a model that it knows."""
    Upstream.answer, Upstream.chunks = answer, chunks
    got = litellm.completion(
        **request | {"model": "anthropic/claude-sonnet-4-5"}, api_key="none", drop_params=True,
        api_base=f"http://127.0.0.1:{SERVER.server_port}",
    )  # fmt: skip
    shown = [chunk.model_dump(mode="json") for chunk in got] if chunks else got.model_dump(mode="json")
    return Upstream.asked, shown


def plain(value):
    return json.loads(json.dumps(value, default=vars))


def ask(case):
    try:
        sent, shown = WAYS[case.pop("way")](**case)
        return {"sent": plain(sent), "shown": plain(shown)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


WAYS = {"responses": responses, "messages": messages, "anthropic": chat}
SERVER = HTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
answers = [ask(case) for case in json.load(sys.stdin)]
sys.stdout.write("\n" + json.dumps(answers))
