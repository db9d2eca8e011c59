// How an upstream is doing, in words: its circuit breaker, its API keys and its last failure.

import { address } from "./address.js";
import { h } from "./dom.js";
import { NOTHING, count, many, recent, span } from "./format.js";
import { attemptOutcome } from "./words.js";

const CIRCUITS = { closed: ["serving", "fine"], "half-open": ["being tested", "near"], open: ["avoided", "full"] };

/** Upstreams as the API has them, each with its last run of failures (`run`), where there was one within an hour. */
export function withRuns(upstreams, runs) {
  const known = new Map(runs.map((run) => [run.upstream, run]));
  return upstreams.map((row) => ({ ...row, run: known.get(row.name) ?? null }));
}

/** The failures of a run, by HTTP status or kind: "status 503 × 11". */
export const kindsOf = ({ kinds }) => kinds.map(({ fault, status, count: number }) => `${status === null ? attemptOutcome(fault) : `status ${status}`} × ${count(number)}`).join(", ");

const shortTime = (time) => recent(time).slice(0, -3);

/** A run of failures in words: when, how many, with what. */
export const runInWords = (run) => `${kindsOf(run)}, ${count(run.failures)} of ${many(run.attempts, "attempt")}, ${shortTime(run.since)}${run.failing ? " until now" : ` to ${shortTime(run.last)}`}`;

/** A pill of an upstream that fails, or of a circuit's state, and since when it has been so. */
export function circuit({ state, state_s, run }) {
  if (run?.failing) {
    const words = h("small", { title: run.detail }, ` since ${shortTime(run.since)}: ${kindsOf(run)}`, run.message && h("q", { class: "said" }, run.message));
    return h("span", { class: "circuit", data: { circuit: "failing" } }, h("span", { class: "pill full" }, state === "open" ? "failing, avoided" : "failing"), words);
  }
  const [said, kind] = CIRCUITS[state];
  return h("span", { class: "circuit", data: { circuit: state } }, h("span", { class: `pill ${kind}` }, said), h("small", null, ` for ${span(state_s).replace(" ", "\u00a0")}`));
}

/** The state of a route: that of the upstream's circuit for the model, or else of its own. */
const routeState = (upstream, model) => upstream?.models.find((each) => each.model === model) ?? upstream;

/** The routes of a model, each with its upstream, the name that is sent there, and its state. */
export const routes = (model, upstreams) =>
  h(
    "ul",
    { class: "routes" },
    model.routes.map((route) => {
      const state = routeState(upstreams.get(route.upstream), route.model ?? model.name);
      return h(
        "li",
        { data: { route: route.upstream } },
        h("a", { class: "mono", href: address("upstreams", route.upstream) }, route.upstream),
        route.model && [" as ", h("span", { class: "mono" }, route.model)],
        " ",
        state && circuit(state),
      );
    }),
  );

export const lastFailure = ({ last_failure: last, run }) => (run ? h("span", { title: run.detail }, runInWords(run), run.message && h("q", { class: "said" }, run.message)) : last ? `${attemptOutcome(last.fault)}, ${span(last.seconds_ago)} ago` : NOTHING);

/** The API keys that are not used for a while, in words. */
export const resting = ({ credentials }) =>
  credentials
    .filter((each) => each.resting_s > 0)
    .map((each) => `key ${each.number}${each.model ? ` for ${each.model}` : ""} in cooldown for ${span(each.resting_s)}: ${each.fault}`);

const linesOf = (settings, prefix = "") =>
  Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? linesOf(value, `${prefix}${name}.`)
      : [`${prefix}${name}: ${Array.isArray(value) ? value.map((each) => (typeof each === "object" ? JSON.stringify(each) : each)).join(", ") : value}`],
  );

/** The settings of an object that differ from the defaults, as one fact, in the words of the configuration. */
export function settingsOf(settings) {
  const lines = linesOf(settings);
  return lines.length ? { "In the configuration": h("ul", { class: "settings-set" }, lines.map((line) => h("li", null, h("code", null, line)))) } : {};
}
