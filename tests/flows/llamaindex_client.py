"""LlamaIndex on chat completions, asked by a test: python llamaindex_client.py <tasks.json >answers.json"""

from framework_tasks import answer
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def usage_of(raw):
    return {"input_tokens": raw.usage.prompt_tokens, "output_tokens": raw.usage.completion_tokens}


def ask(task):
    model = OpenAILike(
        api_base=task["url"], api_key=task["key"], model=task["model"], is_chat_model=True,
        is_function_calling_model=True, context_window=128000,
        additional_kwargs={"stream_options": {"include_usage": True}} if task["kind"] == "stream" else {},
    )  # fmt: skip
    asked = [ChatMessage(role="user", content="How is the weather in Oslo?")]
    if task["kind"] == "stream":
        pieces = list(model.stream_chat(asked))
        return {"text": pieces[-1].message.content, "pieces": len(pieces), "usage": usage_of(pieces[-1].raw)}
    if task["kind"] == "tool":
        tools = [FunctionTool.from_defaults(weather)]
        called = model.chat_with_tools(tools, chat_history=asked)
        results = [
            ChatMessage(
                role="tool", content=weather(**each.tool_kwargs), additional_kwargs={"tool_call_id": each.tool_id}
            )
            for each in model.get_tool_calls_from_response(called)
        ]
        answer = model.chat_with_tools(tools, chat_history=[*asked, called.message, *results])
    else:
        answer = model.chat(asked)
    return {"text": answer.message.content, "usage": usage_of(answer.raw)}


answer(ask)
