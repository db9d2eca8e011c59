"""OpenAI's Agents SDK, asked by a test: python agents_client.py <tasks.json >answers.json

Runs on the packages that .ci/servers installs for it, not on those of the tests. Address, key and model come with each
task; retries are as people have them.
"""

import asyncio
import json
import sys

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces go to OpenAI otherwise


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


async def ask(task):
    async with AsyncOpenAI(base_url=task["url"], api_key=task["key"]) as client:
        agent = Agent(
            name="Assistant",
            model=OpenAIResponsesModel(model=task["model"], openai_client=client),
            model_settings=ModelSettings(store=False),
            tools=[weather] if task["kind"] == "tool" else [],
        )
        if task["kind"] == "stream":
            run = Runner.run_streamed(agent, "How is the weather in Oslo?")
            pieces = [event async for event in run.stream_events() if event.type == "raw_response_event"]
            found = {"pieces": len(pieces)}
        else:
            run, found = await Runner.run(agent, "How is the weather in Oslo?"), {}
    usage = run.context_wrapper.usage
    return found | {
        "text": run.final_output,
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "requests": usage.requests},
    }


def received(task):
    try:
        return asyncio.run(ask(task))
    except Exception as error:
        code = getattr(error, "code", None)
        return {"error": {"name": type(error).__name__, "code": code, "message": str(error)}}


json.dump([received(task) for task in json.load(sys.stdin)], sys.stdout)
