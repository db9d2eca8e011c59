"""LiteLLM's translations between Responses or Messages and chat, asked by a test: litellm_oracle.py <cases >answers

Runs on LiteLLM's own environment (.ci/servers). Cases are those of tests/recorded/translate; each answer is what
LiteLLM would ask the chat upstream, and what the client gets for the upstream's plain answer.
"""

import json
import sys

from litellm import ModelResponse
from litellm.llms.anthropic.pass_through.adapters.transformation import LiteLLMAnthropicMessagesAdapter
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


def plain(value):
    return json.loads(json.dumps(value, default=vars))


def ask(case):
    try:
        sent, shown = {"responses": responses, "messages": messages}[case["way"]](case["request"], case["answer"])
        return {"sent": plain(sent), "shown": plain(shown)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


answers = [ask(case) for case in json.load(sys.stdin)]
sys.stdout.write("\n" + json.dumps(answers))
