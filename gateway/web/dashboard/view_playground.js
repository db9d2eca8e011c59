// The playground: a model, a prompt, and the answer as it streams, with its headers, tokens and cost. Calls are made with
// an API key: the one that is signed in with, one that was made in this tab, or one that is typed here. Neither it nor a word
// of a call is stored.

import { address } from "./address.js";
import { token } from "./api.js";
import { costOf } from "./call_cost.js";
import { chatEvents } from "./chat_stream.js";
import { fill, h } from "./dom.js";
import { facts } from "./facts.js";
import { field } from "./fields.js";
import { NOTHING, count, many, span, usd } from "./format.js";
import { Table } from "./table.js";
import { chat, chatModels } from "./test_call.js";
import { triedKey } from "./tried_key.js";

const HEADERS = [
  { title: "Header", class: "mono", sort: (row) => row.name, show: (row) => row.name },
  { title: "Value", class: "mono", sort: (row) => row.value, show: (row) => row.value },
];

/** The outcome of a call, as facts. */
function outcomeFacts(call) {
  const { usage } = call;
  return facts({
    Status: h("span", { data: { status: call.status } }, call.status),
    "Request id": call.id ? h("a", { class: "mono", href: address("calls", "", { id: call.id }) }, call.id) : NOTHING,
    "First token": span(call.first_s),
    Duration: span(call.took_s),
    Tokens: usage ? h("span", { data: { usage: `${usage.prompt_tokens} ${usage.completion_tokens}` } }, `${count(usage.prompt_tokens)} in, ${count(usage.completion_tokens)} out`) : NOTHING,
    Cost: call.cost === undefined ? "…" : h("span", { data: { cost: call.cost ?? "unknown" } }, call.cost === null ? "unknown" : usd(call.cost)),
  });
}

export function playground(main, { role, signal }) {
  const tried = triedKey();
  let key = tried?.secret ?? (role === "key" ? token.get() : null); // of this view only
  let running = null;
  const names = h("datalist", { id: "chat-models" });
  const model = h("input", { type: "text", list: "chat-models", required: true, autocomplete: "off", spellcheck: "false" });
  const secret = h("input", { type: "password", autocomplete: "off", spellcheck: "false", placeholder: "sk-gw-…", value: tried?.secret ?? "" });
  const keyHint = tried
    ? `The key ${tried.id}, made in this tab: for calls from this view, until you sign out or load the page again. Or type another one.`
    : "For calls from this view only; it is gone when you leave it. A key that you make here can be tried here at once.";
  const prompt = h("textarea", { rows: "5", required: true, spellcheck: "true" }, "Say hello in five languages.");
  const most = h("input", { type: "number", min: "1", placeholder: "the model’s own", value: "" });
  const streams = h("input", { type: "checkbox", checked: true });
  const send = h("button", { type: "submit", class: "primary", disabled: key === null }, "Send");
  const stop = h("button", { type: "button", disabled: true, onclick: () => running?.abort() }, "Stop");
  const note = h("p", { class: "note", role: "status" });
  const said = h("pre", { class: "answer", tabindex: "0", role: "group", "aria-label": "Answer" });
  const trouble = h("p", { class: "why bad", role: "alert", hidden: true });
  const result = h("div", { class: "playground-result" });

  const fail = (text) => {
    trouble.hidden = !text;
    fill(trouble, text);
  };

  async function lookForModels() {
    fail("");
    try {
      const found = await chatModels(key);
      fill(names, found.map((name) => h("option", { value: name })));
      model.value ||= found[0] ?? "";
      fill(note, found.length ? `${many(found.length, "model")} for chats by name.` : "No model for chats has a name of its own; type one.");
      send.disabled = false;
    } catch (error) {
      send.disabled = true;
      fail(error.message);
    }
  }

  secret.addEventListener("change", () => {
    key = secret.value.trim() || null;
    if (key) lookForModels();
  });

  async function call() {
    running = new AbortController();
    const began = performance.now();
    const since = () => (performance.now() - began) / 1000;
    const done = { status: 0, id: null, first_s: null, took_s: null, usage: null, cost: undefined };
    const body = { model: model.value.trim(), messages: [{ role: "user", content: prompt.value }] };
    if (most.value) body.max_tokens = Number(most.value);
    if (streams.checked) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
    const response = await chat(key, body, AbortSignal.any([signal, running.signal]));
    Object.assign(done, { status: response.status, id: response.headers.get("x-request-id") });
    const headers = new Table(HEADERS, { caption: "Headers of the answer", name: (row) => row.name, sort: 0, isDown: false });
    headers.show([...response.headers].map(([name, value]) => ({ name, value })));
    const show = () => fill(result, outcomeFacts(done), h("div", { class: "panel flush" }, headers.node));
    show();
    try {
      for await (const { text, usage, error } of chatEvents(response)) {
        if (error) fail(error);
        if (text && done.first_s === null) done.first_s = since();
        if (text) said.append(text);
        done.usage = usage ?? done.usage;
      }
    } catch (error) {
      tell(error);
    }
    done.took_s = since();
    show();
    done.cost = response.ok ? await costOf(key, done.id, signal) : 0;
    show();
  }

  const tell = (error) => {
    if (running.signal.aborted) fail("Stopped.");
    else if (!signal.aborted && trouble.hidden) fail(`The call broke off: ${error.message}`);
  };

  const form = h(
    "form",
    {
      class: "panel playground",
      onsubmit: async (event) => {
        event.preventDefault();
        [send.disabled, stop.disabled] = [true, false];
        fill(said);
        fail("");
        try {
          await call();
        } catch (error) {
          tell(error);
        } finally {
          [send.disabled, stop.disabled] = [false, true];
        }
      },
    },
    (tried || role !== "key") && field("key", tried ? "API key" : "Your API key", secret, keyHint),
    h("div", { class: "grid" }, field("model", "Model", model), field("max_tokens", "Longest answer", most)),
    field("prompt", "Prompt", prompt),
    h("label", { class: "check" }, streams, " Stream the answer"),
    names,
    note,
    h("footer", null, stop, send),
  );
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "playground-title" },
      h("h2", { id: "playground-title" }, "Playground"),
      h("p", { class: "note" }, "A call like any other: it counts against the key’s quotas, and is charged like one."),
      form,
      trouble,
      h("div", { class: "panel" }, said),
      result,
    ),
  );
  if (key) lookForModels();
}
