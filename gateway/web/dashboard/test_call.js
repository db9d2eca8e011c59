// A test call with a key: one short answer, with what became of it in words. Nothing of it is kept in the page.

import { fill, h } from "./dom.js";
import { span } from "./format.js";

const PLANE = new URL("v1/", document.baseURI);

async function answerOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The gateway answered with status ${response.status}.`;
}

/** The models that a key may call: `id` and `endpoints`. Raises `Error`. */
async function modelsOf(secret) {
  const response = await fetch(new URL("models", PLANE), { headers: { Authorization: `Bearer ${secret}` }, cache: "no-store" });
  if (!response.ok) throw new Error(await answerOf(response));
  return (await response.json()).data;
}

const serves = (endpoint) => (model) => !model.endpoints || model.endpoints.includes(endpoint);

/** The models that a key may call, those for chats first: `id`, `endpoints` and `price`. Raises `Error`. */
export async function modelsToCall(secret) {
  const found = await modelsOf(secret);
  const isChat = serves("chat");
  return [...found.filter(isChat), ...found.filter((model) => !isChat(model))];
}

/** The models that a key may call for chats: their names. Raises `Error`. */
export const chatModels = async (secret) => (await modelsOf(secret)).filter(serves("chat")).map((model) => model.id);

// The request of a test call, by endpoint: its path, and the body for a model. The first one that a model has is taken.
const HELLO = [{ role: "user", content: "Say hello." }];
const TESTS = {
  chat: ["chat/completions", (model) => ({ model, max_tokens: 16, messages: HELLO })],
  messages: ["messages", (model) => ({ model, max_tokens: 16, messages: HELLO })],
  responses: ["responses", (model) => ({ model, max_output_tokens: 16, input: "Say hello." })],
  completions: ["completions", (model) => ({ model, max_tokens: 16, prompt: "Hello" })],
  embeddings: ["embeddings", (model) => ({ model, input: "Hello" })],
};

/** Where a test call with this key goes, and its body. Raises `Error`. */
async function testOf(secret) {
  const found = await modelsOf(secret);
  for (const [endpoint, [path, body]] of Object.entries(TESTS)) {
    const model = found.find(serves(endpoint))?.id;
    if (model) return { path, model, body: body(model) };
  }
  throw new Error("No model that this key may call has a name of its own here; send a call with the model’s name in the playground.");
}

/** A chat with a key: the response as `fetch` has it. */
export const chat = (secret, body, signal) => send(secret, "chat/completions", body, signal);

const send = (secret, path, body, signal) =>
  fetch(new URL(path, PLANE), {
    method: "POST",
    headers: { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
    cache: "no-store",
    signal,
  });

/** A button that makes one call with this key, and shows its outcome. */
export function testCall(secret) {
  const said = h("p", { class: "why", data: { test: "" }, role: "status", hidden: true });
  const tell = (kind, ...words) => {
    said.hidden = false;
    said.className = `why ${kind}`;
    fill(said, words);
  };
  const button = h("button", { type: "button" }, "Send a test call");
  button.addEventListener("click", async () => {
    button.disabled = true;
    const began = performance.now();
    try {
      const { path, model, body } = await testOf(secret);
      const response = await send(secret, path, body);
      const id = response.headers.get("x-request-id");
      if (response.ok) tell("good", `It works: ${model} answered in ${span((performance.now() - began) / 1000)} (${id}).`);
      else tell("bad", await answerOf(response), ` (${id})`);
    } catch (error) {
      tell("bad", error.message);
    } finally {
      button.disabled = false;
    }
  });
  return h("div", { class: "test-call" }, button, said);
}
