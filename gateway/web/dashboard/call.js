// One call: as a line among others, and in full, with why it ended as it did.

import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { NOTHING, clock, count, moment, span, usd } from "./format.js";
import { explain, outcome } from "./words.js";

const tokensOf = (call) => call.prompt_tokens + call.completion_tokens;

export const COLUMNS = [
  {
    title: "Began",
    sort: (call) => call.time,
    show: (call) => h("span", { title: `${moment(call.time)} UTC` }, clock(call.time)),
  },
  { title: "Key", class: "mono", sort: (call) => call.key, show: (call) => call.key },
  {
    title: "Model",
    class: "mono clip",
    sort: (call) => call.model,
    show: (call) => h("span", { title: call.model }, call.model),
  },
  { title: "Upstream", class: "mono", sort: (call) => call.upstream, show: (call) => call.upstream || NOTHING },
  {
    title: "Outcome",
    sort: (call) => call.status,
    show: (call) => [
      h("span", { class: `pill ${{ good: "fine", bad: "full", mild: "near" }[outcome(call)[1]]}` }, outcome(call)[0]),
      ` ${call.status}`,
    ],
  },
  {
    title: "Tokens",
    isNumber: true,
    sort: tokensOf,
    show: (call) => [call.usage_source === "estimated" && "≈ ", count(tokensOf(call))],
  },
  {
    title: "Cost",
    isNumber: true,
    sort: (call) => call.cost_usd,
    show: (call) => (call.cost_usd === null ? h("span", { class: "unknown" }, "unknown") : usd(call.cost_usd)),
  },
  { title: "First token", isNumber: true, sort: (call) => call.first_byte_s, show: (call) => span(call.first_byte_s) },
  { title: "Took", isNumber: true, sort: (call) => call.duration_s, show: (call) => span(call.duration_s) },
];

function facts(call) {
  const prompt = `${count(call.prompt_tokens)} prompt (${count(call.cached_tokens)} cached)`;
  const completion = `${count(call.completion_tokens)} completion (${count(call.reasoning_tokens)} reasoning)`;
  const pairs = {
    Id: call.id,
    "Began at": `${moment(call.time)} UTC`,
    Key: call.key,
    Team: call.team ?? NOTHING,
    Endpoint: `${call.endpoint}${call.stream ? ", streamed" : ""}`,
    "Model asked for": call.model,
    "Model that served": call.served_model,
    "Model sent upstream": call.routed_model,
    "Model that answered": call.returned_model ?? NOTHING,
    Upstream: call.upstream || NOTHING,
    Status: call.status,
    Attempts: call.attempts,
    Tokens: `${prompt}, ${completion}, ${call.usage_source}`,
    "Further units":
      Object.entries(call.units)
        .map(([unit, number]) => `${count(number)} ${unit}`)
        .join(", ") || NOTHING,
    Cost: usd(call.cost_usd),
    Price: call.price
      ? Object.entries(call.price)
          .map(([row, price]) => `$${price} ${row}`)
          .join(", ")
      : "none known",
    "Price from": [
      call.price_source,
      call.price_variant,
      call.price_tier === null ? null : `prompts above ${count(call.price_tier)} tokens`,
    ]
      .filter(Boolean)
      .join(", ") || NOTHING,
    "First token after": span(call.first_byte_s),
    Took: span(call.duration_s),
    "Client's own id": call.client_request_id ?? NOTHING,
  };
  return h(
    "dl",
    { class: "facts" },
    Object.entries(pairs).map(([name, value]) => [h("dt", null, name), h("dd", { class: "mono" }, value)]),
  );
}

/** One call in full. */
export const openCall = (call) =>
  openDialog("One call", () =>
    h("div", null, h("p", { class: `why ${outcome(call)[1]}` }, explain(call).join(" ")), facts(call)),
  );
