// A test call with a key: one short answer, with what became of it in words. Nothing of it is kept in the page.

import { fill, h } from "./dom.js";
import { span } from "./format.js";

const PLANE = new URL("../v1/", import.meta.url);

async function answerOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The gateway answered with status ${response.status}.`;
}

/** The models that a key may call for chats: their ids. Raises `Error`. */
export async function chatModels(secret) {
  const response = await fetch(new URL("models", PLANE), { headers: { Authorization: `Bearer ${secret}` }, cache: "no-store" });
  if (!response.ok) throw new Error(await answerOf(response));
  const { data } = await response.json();
  return data.filter((model) => !model.endpoints || model.endpoints.includes("chat")).map((model) => model.id);
}

/** A chat with a key: the response as `fetch` has it. */
export const chat = (secret, body, signal) =>
  fetch(new URL("chat/completions", PLANE), {
    method: "POST",
    headers: { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
    cache: "no-store",
    signal,
  });

/** A button that makes one call with this key, and says how it went. */
export function testCall(secret, model) {
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
      const wanted = model ?? (await chatModels(secret))[0];
      if (!wanted) throw new Error("This key may call no model for chats.");
      const response = await chat(secret, { model: wanted, max_tokens: 16, messages: [{ role: "user", content: "Say hello." }] });
      const id = response.headers.get("x-request-id");
      if (response.ok) tell("good", `It works: ${wanted} answered in ${span((performance.now() - began) / 1000)} (${id}).`);
      else tell("bad", await answerOf(response), ` (${id})`);
    } catch (error) {
      tell("bad", error.message);
    } finally {
      button.disabled = false;
    }
  });
  return h("div", { class: "test-call" }, button, said);
}
