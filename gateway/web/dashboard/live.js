// What happens right now: rates of the last seconds, times of the last minute, and how the upstreams are.

import { spark } from "./chart.js";
import { fill, h } from "./dom.js";
import { NOTHING, compact, count, many, percent, rate, span } from "./format.js";
import { curve, lately, perSecond, quantile } from "./rates.js";
import { bones, failed as failure } from "./states.js";
import { STATES, attemptOutcome, isGood } from "./words.js";

const tokens = (sample) => sample.tokens.completion;
const requests = (sample) => sample.requests;
const faults = (sample) =>
  Object.entries(sample.by_status).reduce((all, [status, number]) => all + (Number(status) >= 400 ? number : 0), 0);
const firstToken = (sample) => sample.first_token;

function tile(name, title, value, more, drawing) {
  return h(
    "div",
    { class: "tile", data: { tile: name } },
    h("h3", null, title),
    h("p", { class: "figure" }, value),
    h("p", { class: "more" }, more),
    drawing,
  );
}

function tiles(samples) {
  const last = samples.at(-1);
  const p50 = quantile(samples, firstToken, 0.5);
  const p95 = quantile(samples, firstToken, 0.95);
  const failing = lately(samples, faults);
  const recent = lately(samples, requests);
  const state = failing ? "bad" : "";
  return [
    tile(
      "requests",
      "Requests per second",
      rate(perSecond(samples, requests)),
      `${count(last.requests)} since the start`,
      spark(curve(samples, requests)),
    ),
    tile(
      "first-token",
      "Time to first token",
      span(p50),
      ["median · 95 % within ", h("b", null, span(p95))],
      spark(samples.map((_, place) => quantile(samples.slice(0, place + 1), firstToken, 0.5) ?? 0)),
    ),
    tile(
      "tokens",
      "Tokens per second",
      rate(perSecond(samples, tokens)),
      `generated · ${compact(last.tokens.completion)} since the start`,
      spark(curve(samples, tokens)),
    ),
    tile(
      "in-flight",
      "Calls in flight",
      count(last.in_flight),
      last.journal_pending
        ? `${many(last.journal_pending, "record")} on the way to the store`
        : "every record is in the store",
      spark(samples.map((sample) => sample.in_flight)),
    ),
    tile(
      "errors",
      "Refused or failed",
      h("span", { class: state }, failing === null ? NOTHING : count(failing)),
      recent ? `in the last minute, ${percent(failing ?? 0, recent)} of the calls` : "in the last minute",
      spark(curve(samples, faults)),
    ),
  ];
}

function upstream(name, samples) {
  const pick = (sample) => sample.upstreams[name];
  const now = pick(samples.at(-1));
  const [said, kind] = STATES[now.state];
  const outcomes = Object.entries(now.attempts).filter(([, number]) => number > 0);
  const sum = (isWanted) =>
    outcomes.reduce((all, [outcome, number]) => all + (isGood(outcome) === isWanted ? number : 0), 0);
  const [good, failed] = [sum(true), sum(false)];
  const median = quantile(samples, (sample) => pick(sample)?.first_token ?? { le: [], counts: [] }, 0.5);
  const troubles = outcomes.filter(([outcome]) => !isGood(outcome)).sort((one, other) => other[1] - one[1]);
  return h(
    "li",
    { class: "upstream", data: { upstream: name, state: now.state } },
    h("div", { class: "row" }, h("b", { class: "mono" }, name), h("span", { class: `pill ${kind}` }, said)),
    h(
      "p",
      { class: "more" },
      `${count(good)} attempts answered, ${count(failed)} failed since the start`,
      median === null ? null : ` · first token ${span(median)}`,
    ),
    troubles.length > 0 &&
      h(
        "p",
        { class: "more" },
        troubles.map(([outcome, number]) => `${attemptOutcome(outcome)} × ${count(number)}`).join(", "),
      ),
  );
}

/** The part of the page that is live. */
export function livePanel(feed, signal) {
  const figures = h("div", { class: "tiles", "aria-label": "Live numbers", role: "group" }, bones("tile", 5));
  const list = h("ul", { class: "upstreams" }, bones("line", 2));
  const node = h(
    "section",
    { "aria-labelledby": "live-title" },
    h("h2", { id: "live-title", class: "sr" }, "Right now"),
    figures,
    h("h2", null, "Upstreams"),
    list,
  );
  feed.listen(() => {
    if (!feed.last) {
      fill(figures, failure(feed.error));
      fill(list);
      return;
    }
    node.classList.toggle("old", feed.error !== null);
    fill(figures, tiles(feed.samples));
    fill(
      list,
      Object.keys(feed.last.upstreams).map((name) => upstream(name, feed.samples)),
    );
  }, signal);
  return node;
}
