"""OpenAI's Agents SDK, asked by a test: python agents_client.py <tasks.json >answers.json"""

import asyncio

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from framework_tasks import answer
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


answer(lambda task: asyncio.run(ask(task)))
