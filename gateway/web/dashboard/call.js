// One call: as a line among others, and in full, with why it ended as it did.

import { detailAddress, goBack } from "./address.js";
import { get } from "./api.js";
import { attempts, waterfall } from "./call_times.js";
import { openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { facts, linked } from "./facts.js";
import { NOTHING, count, fullMoment, recent, span, usd } from "./format.js";
import { modelOf } from "./refusal_rows.js";
import { into } from "./states.js";
import { sumOf } from "./table_parts.js";
import { PILL, explain, outcome } from "./words.js";

const isCall = (row) => row.kind !== "refusal";
const tokensOf = (row) => (isCall(row) ? row.prompt_tokens + row.completion_tokens : null);

function outcomeOf(row) {
  if (!isCall(row)) return [h("span", { class: "pill full" }, "refused by gateway"), ` ${row.status} `, h("code", null, row.code)];
  const [said, kind] = outcome(row);
  return [h("span", { class: `pill ${PILL[kind]}` }, said), ` ${row.status}`];
}

/** `linkedTo(group)`: whether names of this group lead to pages. */
export const columns = (linkedTo) => [
  {
    title: "Began",
    sort: (call) => call.time,
    show: (call) => h("span", { title: fullMoment(call.time) }, recent(call.time)),
  },
  { title: "Key", class: "mono clip", sort: (row) => row.key ?? "", show: (row) => linked("key", row.key, row.key ?? "unknown", linkedTo) },
  {
    title: "Outcome",
    sort: (row) => row.status,
    show: outcomeOf,
  },
  {
    title: "Model",
    class: "mono clip",
    sort: modelOf,
    show: (row) => linked("model", isCall(row) ? row.served_model || row.model : "", modelOf(row) || NOTHING, linkedTo),
  },
  { title: "Upstream", class: "mono clip", sort: (call) => call.upstream ?? "", show: (call) => linked("upstream", call.upstream, call.upstream || NOTHING, linkedTo) },
  {
    title: "Tokens",
    isNumber: true,
    sort: tokensOf,
    show: (row) => (isCall(row) ? [row.usage_source === "estimated" && "≈ ", count(tokensOf(row))] : NOTHING),
  },
  {
    title: "Cost",
    isNumber: true,
    sort: (row) => (isCall(row) ? row.cost_usd : null),
    show: (call) => (!isCall(call) ? NOTHING : call.cost_usd === null ? h("span", { class: "unknown" }, "unknown") : usd(call.cost_usd)),
  },
  { title: "First token", isNumber: true, sort: (call) => call.first_byte_s ?? null, show: (call) => span(call.first_byte_s) },
  { title: "Duration", isNumber: true, sort: (call) => call.duration_s ?? null, show: (call) => span(call.duration_s) },
];

/** The tokens and the known cost of some of them together; times are not added up. */
export const totalOf = (rows) => ({ ...sumOf("prompt_tokens", "completion_tokens", "cost_usd")(rows.filter(isCall)), first_byte_s: NaN, duration_s: NaN });

/** The names of the model, as one where all are the same. */
function modelNames(call) {
  const names = {
    "Model asked for": call.model,
    "Model that served": call.served_model,
    "Model sent upstream": call.routed_model,
    "Model that answered": call.returned_model ?? NOTHING,
  };
  return new Set([call.returned_model ?? call.model, ...Object.values(names).slice(0, 3)]).size === 1 ? { Model: call.model } : names;
}

const pricesOf = ({ price }) =>
  price
    ? Object.entries(price)
        .map(([row, usd]) => `$${usd} ${row}`)
        .join(", ")
    : "none known";

const PER = { 1: "each", 1000000: "per million", 60000: "per minute", 3600000: "per hour" };

/** The cost as a sum: a line for each unit; null where it is not known which prices made it. */
function costSum(call) {
  if (!call.cost_parts.length) return null;
  const line = ({ unit, amount, per, price_usd, cost_usd }) =>
    h(
      "tr",
      { data: { unit } },
      h("th", { scope: "row" }, unit.replaceAll("_", " ")),
      h("td", { class: "number", data: { value: amount } }, count(amount)),
      h("td", null, `× ${usd(price_usd)} ${PER[per] ?? `per ${count(per)}`}`),
      h("td", { class: "number", data: { value: cost_usd } }, usd(cost_usd)),
    );
  return [
    h("h3", null, "Cost"),
    h(
      "table",
      { class: "cost-sum" },
      h("caption", { class: "sr" }, "The cost as a sum"),
      h("tbody", null, call.cost_parts.map(line)),
      h(
        "tfoot",
        null,
        h("tr", null, h("th", { scope: "row", colspan: 3 }, "Total"), h("td", { class: "number", data: { value: call.cost_usd } }, usd(call.cost_usd))),
      ),
    ),
  ];
}

function factsOf(call) {
  const prompt = `${count(call.prompt_tokens)} prompt (${count(call.cached_tokens)} cached)`;
  const completion = `${count(call.completion_tokens)} completion (${count(call.reasoning_tokens)} reasoning)`;
  const pairs = {
    Id: call.id,
    "Began at": fullMoment(call.time),
    Key: call.key,
    Team: call.team,
    Endpoint: `${call.endpoint}${call.stream ? ", streamed" : ""}`,
    ...modelNames(call),
    Upstream: call.upstream || null,
    Status: call.status,
    Attempts: call.attempts,
    Tokens: `${prompt}, ${completion}, ${call.usage_source}`,
    "Further units":
      Object.entries(call.units)
        .map(([unit, number]) => `${count(number)} ${unit}`)
        .join(", ") || null,
    Cost: usd(call.cost_usd),
    ...(call.cost_parts.length ? {} : { Price: pricesOf(call) }),
    "Price from": [
      call.price_source,
      call.price_variant,
      call.price_tier === null ? null : `prompts above ${count(call.price_tier)} tokens`,
    ]
      .filter(Boolean)
      .join(", ") || null,
    ...(call.stream ? { "First token after": span(call.first_byte_s) } : {}),
    Duration: span(call.duration_s),
    "Client’s own id": call.client_request_id,
  };
  return listed(pairs);
}

/** A list of facts; unknown ones are left out. */
const listed = (pairs) =>
  facts(Object.fromEntries(Object.entries(pairs).filter(([, value]) => value !== null && value !== NOTHING)), "mono");

/** One call in full. */
const inFull = (call) => [
  h("p", { class: `why ${outcome(call)[1]}` }, explain(call).join(" ")),
  waterfall(call),
  attempts(call),
  costSum(call),
  factsOf(call),
];

/** One refused request in full. */
const refusalInFull = (row) => [
  h("p", { class: "why bad" }, row.message),
  listed({
    Id: row.id,
    "Refused at": fullMoment(row.time),
    Key: row.key ?? "unknown",
    Team: row.team,
    Path: row.path,
    Model: modelOf(row) || null,
    Status: row.status,
    Code: row.code,
    Parameter: row.param,
    Limit: row.limit,
    "Client’s address": row.remote,
  }),
];

/** Open the call or the refusal with this id over what is shown; closing leads back to that. `own`: it is looked for among the
 * person's own alone, of every team. */
export function openDetail(id, own) {
  const ended = new AbortController();
  const place = h("div");
  const dialog = openDialog("One call", () => place, {
    kind: "detail", isPage: true,
    onClose: (isLeft) => {
      ended.abort();
      if (!isLeft) goBack(detailAddress(null));
    },
  });
  const look = () =>
    into(
      place,
      ended.signal,
      async () => {
        const { call, refusal } = await get(`requests/${encodeURIComponent(id)}`, own ? { own: "true" } : null, ended.signal);
        if (refusal) fill(dialog.querySelector("h2"), "One refused request");
        fill(place, call ? inFull(call) : refusalInFull(refusal));
      },
      look,
    );
  look();
}
