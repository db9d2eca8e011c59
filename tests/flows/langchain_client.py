"""LangChain's ChatOpenAI on the Responses API, asked by a test: python langchain_client.py <tasks.json >answers.json"""

from framework_tasks import answer
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def ask(task):
    model = ChatOpenAI(
        base_url=task["url"], api_key=task["key"], model=task["model"], use_responses_api=True, store=False
    )
    asked = [HumanMessage("How is the weather in Oslo?")]
    if task["kind"] == "stream":
        pieces = list(model.stream(asked))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        return {"text": whole.text, "pieces": len(pieces), "usage": whole.usage_metadata}
    if task["kind"] == "tool":
        able = model.bind_tools([weather])
        called = able.invoke(asked)
        results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
        answer = able.invoke([*asked, called, *results])
    else:
        answer = model.invoke(asked)
    return {"text": answer.text, "usage": answer.usage_metadata}


answer(ask)
