"""Each way of a call: the client's format, the upstream's, the request, and the answers around any report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import Behaviour
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, model, settings

from . import usage_answers as said
from . import usage_shapes as shapes
from .usage_answers import Members, Places
from .usage_shapes import Shape

MESSAGES = [{"role": "user", "content": "Hello"}]
CONTENT = {"parts": [{"text": "Hello"}]}
QUOTAS = [{"tokens": 10**14, "per": "day"}, {"usd": 8_000_000, "per": "month"}]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


class Upstream(NamedTuple):
    """The answers of an upstream's format, and the shapes of its reports."""

    shapes: Sequence[Shape]
    plain: Callable[[Members], Behaviour] | None = None
    stream: Callable[[Places], Behaviour] | None = None


class Way(NamedTuple):
    """A client's format, and the upstream that answers it."""

    client: str
    """The endpoint."""
    upstream: Upstream
    ask: Callable[..., Answer]
    reader: str
    """The name of a reader in `READERS`."""
    is_passed: bool = True
    """Whether the upstream's words are passed on unchanged."""
    model: Mapping[str, Any] = {}
    able: Mapping[str, Any] = {}
    """Capabilities of the upstream."""
    requests: int = 1
    """How many requests the upstream gets for a call."""
    always_shown: bool = False
    """Whether an answer of the client's format has a usage always."""


def post(path: str, **members: Any) -> Callable[..., Answer]:
    def ask(gateway: Gateway, name: str, *, is_stream: bool) -> Answer:
        streamed = {"stream": True} if is_stream else {}
        if is_stream and path in ("/v1/chat/completions", "/v1/completions"):
            streamed["stream_options"] = {"include_usage": True}  # type: ignore[assignment]
        return gateway.post(path, {"model": name, **members, **streamed})

    return ask


def gemini(verb: str, **members: Any) -> Callable[..., Answer]:
    def ask(gateway: Gateway, name: str, *, is_stream: bool) -> Answer:
        called = "streamGenerateContent?alt=sse" if is_stream else verb
        return gateway.post(f"/v1beta/models/{name}:{called}", members)

    return ask


def post_form(path: str, *fields: tuple[str, str | bytes]) -> Callable[..., Answer]:
    def ask(gateway: Gateway, name: str, *, is_stream: bool) -> Answer:
        streamed = [("stream", "true")] if is_stream else []
        return gateway.send("POST", path, form(("model", name), *streamed, *fields), headers=TYPE)

    return ask


CHAT = Upstream([*shapes.CHAT, *shapes.OF_VENDORS], said.chat_plain, said.chat_stream)
OF_MESSAGES = Upstream(shapes.MESSAGES, said.messages_plain, said.messages_stream)
OF_COMPLETIONS = Upstream(shapes.COMPLETIONS, said.completions_plain, said.completions_stream)
EDITS = Upstream(shapes.IMAGES, said.images_plain, said.pictures_stream("image_edit"))
TRANSCRIBED = Upstream(shapes.TRANSCRIPTIONS, said.transcriptions_plain, said.transcriptions_stream)
SOUND = ("file", wav(2))

PASSED: dict[str, Way] = {
    "completions": Way("completions", OF_COMPLETIONS, post("/v1/completions", prompt="Hello"), "completions"),
    "chat": Way("chat", CHAT, post("/v1/chat/completions", messages=MESSAGES), "chat"),
    "embeddings": Way("embeddings", Upstream(shapes.EMBEDDINGS, said.embeddings_plain),
                      post("/v1/embeddings", input="Hello"), "tokens"),
    "messages": Way("messages", OF_MESSAGES, post("/v1/messages", messages=MESSAGES, max_tokens=4000), "messages"),
    "responses": Way("responses", Upstream(shapes.RESPONSES, said.responses_plain, said.responses_stream),
                     post("/v1/responses", input="Hello"), "responses"),
    "compact": Way("compact", Upstream(shapes.COMPACT, said.compact_plain),
                   post("/v1/responses/compact", input="Hello"), "compact"),
    "moderations": Way("moderations", Upstream(shapes.MODERATIONS, said.moderations_plain),
                       post("/v1/moderations", input="Hello"), "tokens"),
    "rerank": Way("rerank", Upstream(shapes.RERANK, said.rerank_plain),
                  post("/v1/rerank", query="which?", documents=["one", "two"]), "rerank",
                  model={"price": shapes.RERANK_PRICE}),
    "images": Way("images", Upstream(shapes.IMAGES, said.images_plain, said.pictures_stream("image_generation")),
                  post("/v1/images/generations", prompt="a cat"), "media", model={"price": shapes.IMAGE_PRICE}),
    "image_edits": Way("image_edits", EDITS, post_form("/v1/images/edits", ("prompt", "a cat"), ("image", PNG)),
                       "media", model={"price": shapes.IMAGE_PRICE}),
    "image_variations": Way("image_variations", Upstream(shapes.shapes_with(shapes.IMAGES, "plain"), said.images_plain),
                            post_form("/v1/images/variations", ("image", PNG)), "media",
                            model={"price": shapes.IMAGE_PRICE}),
    "speech": Way("speech", Upstream(shapes.SPEECH, None, said.speech_stream),
                  post("/v1/audio/speech", input="Hello there.", voice="alloy", stream_format="sse"), "media"),
    "transcriptions": Way("transcriptions", TRANSCRIBED, post_form("/v1/audio/transcriptions", SOUND), "media"),
    "translations": Way("translations", Upstream(shapes.TRANSCRIPTIONS, said.transcriptions_plain),
                        post_form("/v1/audio/translations", SOUND), "media"),
    "generate_content": Way("generate_content", Upstream(shapes.GEMINI, said.gemini_plain, said.gemini_stream),
                            gemini("generateContent", contents=[{"role": "user", **CONTENT}]), "gemini"),
    "embed_content": Way("embed_content", Upstream(shapes.GEMINI_EMBEDDINGS, said.embed_content_plain),
                         gemini("embedContent", content=CONTENT), "metadata"),
    "batch_embed_contents": Way("batch_embed_contents",
                                Upstream(shapes.GEMINI_EMBEDDINGS, said.batch_embed_contents_plain),
                                gemini("batchEmbedContents", requests=[{"content": CONTENT}]), "metadata"),
    "transcriptions by second": Way("transcriptions",
                                    Upstream(shapes.SECONDS, said.transcriptions_plain, said.transcriptions_stream),
                                    post_form("/v1/audio/transcriptions", SOUND), "media",
                                    model={"price": shapes.SECOND_PRICE}),
    "translations by second": Way("translations", Upstream(shapes.SECONDS, said.transcriptions_plain),
                                  post_form("/v1/audio/translations", SOUND), "media",
                                  model={"price": shapes.SECOND_PRICE}),
    "speech by character": Way("speech", Upstream(shapes.CHARACTERS, None, said.speech_bytes),
                               post("/v1/audio/speech", input="Hello there.", voice="alloy"), "media",
                               model={"price": shapes.CHARACTER_PRICE}),
    "completions in parts": Way("completions", OF_COMPLETIONS, post("/v1/completions", prompt=["Hello", "there"]),
                                "completions", is_passed=False, able={"prompt_arrays": False}, requests=2),
}  # fmt: skip
"""By name; the name of a format is that of its own way."""

OVER: dict[tuple[str, str], Way] = {
    ("responses", "chat"): PASSED["responses"]._replace(upstream=CHAT, is_passed=False, able={"responses": "via_chat"}),
    ("messages", "chat"): PASSED["messages"]._replace(
        upstream=CHAT, is_passed=False, able={"messages": "via_chat"}, always_shown=True
    ),
    ("chat", "messages"): PASSED["chat"]._replace(
        upstream=OF_MESSAGES, is_passed=False, able={"chat": "via_messages", "messages": True}
    ),
}
"""Translations, by the client's format and the upstream's."""

FAN_OUT = PASSED["completions in parts"]._replace(upstream=CHAT, able={"completions": "via_chat"})

ALL_WAYS = {
    **PASSED,
    **{f"{client} over {upstream}": way for (client, upstream), way in OVER.items()},
    "completions over chat": FAN_OUT,
}


SERVED_WITH = {"compact": "responses", "batch_embed_contents": "embed_content"}
"""Formats that a model has with another one."""


def model_of(name: str) -> str:
    return name.replace(" ", "-")


def configured(url: str, keys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings with a model and an upstream of its own for each way; all upstreams are at one address."""
    native = {"messages": True, "generate_content": True, "responses": True}
    upstreams: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for name, way in ALL_WAYS.items():
        upstreams[model_of(name)] = {"base_url": url, "capabilities": way.able or native}
        plain = {"price": shapes.PRICE, "max_output_tokens": 4096}
        models[model_of(name)] = model(
            SERVED_WITH.get(way.client, way.client), model_of(name), **plain | dict(way.model)
        )
    return settings(url, upstreams=upstreams, models=models, keys=[*keys])


class Charged(NamedTuple):
    """What the quotas of a key were charged."""

    tokens: int
    nusd: int


class Quotas:
    """Reads the quotas of the key, for what was charged since the last look."""

    def __init__(self, gateway: Gateway, key: str = "alice") -> None:
        self._gateway = gateway
        self._key = key
        self._before = Charged(0, 0)

    def charged(self) -> Charged:
        """When nothing is reserved any more."""
        now = eventually(self._look)
        before, self._before = self._before, now
        return Charged(now.tokens - before.tokens, now.nusd - before.nusd)

    def _look(self) -> Charged | None:
        rows = self._gateway.get("/v1/key", key=self._key).json["quotas"]
        if any(row["reserved"] for row in rows):
            return None
        used = {row["unit"]: row["used"] for row in rows}
        return Charged(used["tokens"], round(used["usd"] * 1e9))
