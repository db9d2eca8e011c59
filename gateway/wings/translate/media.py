"""Images and documents in the parts of a message, from format to format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .accepted import picture_type
from .fields import a_text, an_object, unsupported, wrong

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*;base64,", re.ASCII)


def of_data_url(url: str) -> tuple[str, str] | None:
    """The media type and the base64 data of a URL (RFC 2397); None for another URL."""
    match = _DATA_URL.match(url)
    return None if match is None else (match[1], url[match.end() :])


def _data_url(source: Mapping[str, Any], path: str) -> str:
    media_type = a_text(source.get("media_type"), f"{path}.media_type")
    return f"data:{media_type};base64,{a_text(source.get('data'), f'{path}.data')}"


def chat_image(url: str, detail: Any = None) -> dict[str, Any]:
    image = {"url": url} if detail is None else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image}


def answered_image(url: str) -> dict[str, Any]:
    """A picture of an answer as a block of Messages."""
    found = of_data_url(url)
    data = {} if found is None else {"media_type": picture_type(*found) or found[0], "data": found[1]}
    return {"type": "image", "source": {"type": "base64", **data} if data else {"type": "url", "url": url}}


def made_picture(part: dict[str, Any]) -> list[dict[str, Any]]:
    """A picture of the assistant's, as parts of the next message of the user: a message of the assistant cannot hold it
    (openai-openapi, ChatCompletionRequestAssistantMessage)."""
    return [{"type": "text", "text": "(Your last message had this picture.)"}, part]


def tool_message(call_id: str, parts: list[dict[str, Any]], first: str = "") -> tuple[dict[str, Any], list[Any]]:
    """The result of a call as a tool message of chat, behind this text, and the parts that such a message cannot hold,
    for a message of the user."""
    texts = [first, *[part["text"] for part in parts if part["type"] == "text"]]
    others = [part for part in parts if part["type"] != "text"]
    if others:
        texts.append("(Images or files of this result follow in the next message.)")
        others.insert(0, {"type": "text", "text": f"From the result of tool call {call_id}:"})
    return {"role": "tool", "tool_call_id": call_id, "content": "\n".join(text for text in texts if text)}, others


def anthropic_image_as_chat(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    """An `image` block of Messages as a part of chat. Raises `InvalidRequest`."""
    source = an_object(block.get("source"), f"{path}.source")
    if block.get("transformations") is not None:
        raise unsupported(f"{path}.transformations", "images are passed on as they are")
    match source.get("type"):
        case "base64":
            return chat_image(_data_url(source, f"{path}.source"))
        case "url":
            return chat_image(a_text(source.get("url"), f"{path}.source.url"))
        case other:
            raise unsupported(f"{path}.source.type", f"an image cannot be given as `{other}`, only as base64 or url")


def anthropic_document_as_chat(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A `document` block of Messages as a part of chat. Raises `InvalidRequest`."""
    source = an_object(block.get("source"), f"{path}.source")
    if (block.get("citations") or {}) not in ({}, {"enabled": False}):
        raise unsupported(f"{path}.citations", "there are no citations")
    about = [text for name in ("title", "context") if isinstance(text := block.get(name), str) and text]
    match source.get("type"):
        case "text":
            text = a_text(source.get("data"), f"{path}.source.data")
            return {"type": "text", "text": "\n\n".join([*about, text])}
        case "base64":
            title = block.get("title")
            name = title if isinstance(title, str) and title else "document.pdf"
            if block.get("context"):
                raise unsupported(f"{path}.context", "a file has no context")
            return {"type": "file", "file": {"filename": name, "file_data": _data_url(source, f"{path}.source")}}
        case other:
            raise unsupported(f"{path}.source.type", f"a document cannot be given as `{other}`, only as base64 or text")


def chat_image_as_anthropic(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    """An `image_url` part of chat as a block of Messages. `detail` has no equivalent and no effect on Anthropic's
    models. Raises `InvalidRequest`."""
    given = part.get("image_url")
    url = a_text(given if isinstance(given, str) else an_object(given, f"{path}.image_url").get("url"),
                 f"{path}.image_url.url")  # fmt: skip
    return {"type": "image", "source": _anthropic_source(url, f"{path}.image_url.url")}


def chat_file_as_anthropic(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A `file` part of chat as a block of Messages. Raises `InvalidRequest`."""
    file = an_object(part.get("file"), f"{path}.file")
    if file.get("file_id") is not None:
        raise unsupported(f"{path}.file.file_id", "stored files belong to another account; send its data")
    data = a_text(file.get("file_data"), f"{path}.file.file_data")
    title = {"title": file["filename"]} if isinstance(file.get("filename"), str) and file["filename"] else {}
    found = of_data_url(data)
    if found is None:
        raise wrong(f"{path}.file.file_data", "expected a data URL with base64")
    if found[0] != "application/pdf":
        raise unsupported(f"{path}.file.file_data", f"a file of type {found[0]} cannot be read, only application/pdf")
    return {"type": "document", "source": {"type": "base64", "media_type": found[0], "data": found[1]}, **title}


def _anthropic_source(url: str, path: str) -> dict[str, Any]:
    if (found := of_data_url(url)) is not None:
        if (media_type := picture_type(*found)) is None:
            raise unsupported(path, f"a picture of type {found[0]} cannot be read, only JPEG, PNG, GIF and WebP")
        return {"type": "base64", "media_type": media_type, "data": found[1]}
    if not url.startswith("https://"):  # else its 400 (brokk-app#2269)
        raise unsupported(path, "a picture has to be a URL that begins with https:// or a data URL with base64")
    return {"type": "url", "url": url}
