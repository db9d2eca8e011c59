"""LiteLLM's translations between Responses or Messages and chat, asked by a test: litellm_oracle.py <cases >answers

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


def responses(request, answer):
    config = LiteLLMCompletionResponsesConfig
    more = {name: value for name, value in request.items() if name not in ("model", "input", "stream")}
    sent = config.transform_responses_api_request_to_chat_completion_request(
        model=request["model"], input=request["input"], responses_api_request=more, custom_llm_provider="openai"
    )
    shown = config.transform_chat_completion_response_to_responses_api_response(
        request_input=request["input"], responses_api_request=more, chat_completion_response=ModelResponse(**answer)
    )
    return sent, shown.model_dump(mode="json")


def messages(request, answer):
    adapter = LiteLLMAnthropicMessagesAdapter()
    sent, names = adapter.translate_anthropic_to_openai(anthropic_message_request=request)
    shown = adapter.translate_openai_response_to_anthropic(response=ModelResponse(**answer), tool_name_mapping=names)
    return sent, dict(shown)


class Upstream(BaseHTTPRequestHandler):
    """Answers each request with the chunks of the case that is asked about."""

    chunks = ()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in (*map(json.dumps, self.chunks), "[DONE]"):
            self.wfile.write(f"data: {chunk}\n\n".encode())

    def log_message(self, *_):
        pass


def streamed_chat(chunks):
    """LiteLLM's stream of a chat answer."""
    Upstream.chunks = chunks
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


def plain(value):
    return json.loads(json.dumps(value, default=vars))


def ask(case):
    try:
        if "chunks" in case:
            ways = {"responses": responses_stream, "messages": messages_stream}
            return {"shown": plain(ways[case["way"]](case["request"], case["chunks"]))}
        sent, shown = {"responses": responses, "messages": messages}[case["way"]](case["request"], case["answer"])
        return {"sent": plain(sent), "shown": plain(shown)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


SERVER = HTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
answers = [ask(case) for case in json.load(sys.stdin)]
sys.stdout.write("\n" + json.dumps(answers))
