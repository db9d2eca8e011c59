// The newest calls, each with what became of it in words; and what was refused before it became a call.

import { get } from "./api.js";
import { COLUMNS, openCall } from "./call.js";
import { calmly, fill, h } from "./dom.js";
import { count, many } from "./format.js";
import { poll } from "./poll.js";
import { refusals } from "./refusals.js";
import { into } from "./states.js";
import { Table, filterField } from "./table.js";
import { outcome } from "./words.js";

const NEWEST = 200;
const LOOKED_THROUGH = 1000;
const EVERY_MS = 10_000;

const STATUSES = {
  "": "every outcome",
  good: "answered in full",
  bad: "failed or cut off",
  refused: "refused by the upstream",
  left: "client left",
  "4xx": "status 4xx",
  "5xx": "status 5xx",
  limited: "status 429",
  again: "took several attempts",
  estimated: "tokens estimated",
  unknown: "cost unknown",
};

const TESTS = {
  good: (call) => outcome(call)[1] === "good",
  bad: (call) => outcome(call)[1] === "bad",
  refused: (call) => outcome(call)[0] === "refused",
  left: (call) => call.ended === "client_gone",
  "4xx": (call) => Math.floor(call.status / 100) === 4 && call.status !== 499,
  "5xx": (call) => Math.floor(call.status / 100) === 5,
  limited: (call) => call.status === 429,
  again: (call) => call.attempts > 1,
  estimated: (call) => call.usage_source === "estimated",
  unknown: (call) => call.cost_usd === null,
};

export function calls(main, { feed, signal, address }) {
  const chosen = { key: address ?? "", model: "", upstream: "", status: "" };
  const place = h("div");
  const note = h("p", { class: "note", role: "status" });
  const table = new Table(COLUMNS, {
    caption: "The newest calls",
    name: (call) => call.id,
    sort: null,
    open: openCall,
    none: "No calls yet. As soon as one has ended, it stands here.",
  });
  let newest = [];
  let isOfKey = false;

  function draw() {
    const has = (call, name) => call[name].toLowerCase().includes(chosen[name].trim().toLowerCase());
    const found = newest.filter(
      (call) =>
        (isOfKey || has(call, "key")) &&
        has(call, "model") &&
        has(call, "upstream") &&
        (!chosen.status || TESTS[chosen.status](call)),
    );
    table.of.none = newest.length
      ? "None of these calls is so."
      : "No calls yet. As soon as one has ended, it stands here.";
    if (!place.contains(table.node)) fill(place, table.node);
    table.show(found);
    const among = `the newest ${many(newest.length, "call")}${isOfKey ? ` of ${chosen.key.trim()}` : ""}`;
    fill(
      note,
      found.length === newest.length
        ? newest.length
          ? `All of ${among}.`
          : ""
        : `${count(found.length)} of ${among}.`,
    );
  }

  const look = () =>
    into(
      place,
      signal,
      async () => {
        const key = chosen.key.trim();
        const isNarrow = chosen.model || chosen.upstream || chosen.status;
        const limit = isNarrow || key ? LOOKED_THROUGH : NEWEST;
        // A whole id is asked for; a part of one is looked for among the newest.
        const ofKey = key ? (await get("calls", { limit: isNarrow ? LOOKED_THROUGH : NEWEST, key }, signal)).data : [];
        isOfKey = ofKey.length > 0;
        newest = isOfKey ? ofKey : (await get("calls", { limit }, signal)).data;
        draw();
      },
      look,
    );

  const lookSoon = calmly(look);
  const field = (name, label) => {
    const input = filterField(label, (text) => {
      chosen[name] = text;
      if (newest.length) draw();
      lookSoon();
    });
    input.value = chosen[name];
    input.name = name;
    return input;
  };
  const status = h(
    "select",
    {
      "aria-label": "Outcome",
      name: "status",
      onchange: (event) => {
        chosen.status = event.target.value;
        look();
      },
    },
    Object.entries(STATUSES).map(([value, title]) => h("option", { value }, title)),
  );
  status.value = "";

  const refused = h("div");
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "calls-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "calls-title" }, "Newest calls"),
        field("key", "Key"),
        field("model", "Model"),
        field("upstream", "Upstream"),
        status,
      ),
      note,
      h("div", { class: "panel flush" }, place),
    ),
    h(
      "section",
      { "aria-labelledby": "refused-title" },
      h("h2", { id: "refused-title" }, "Refused by the gateway"),
      h(
        "p",
        { class: "note" },
        "A call that was refused never reached an upstream, cost nothing, and has no record. These are counts since the ",
        "gateway started; the bars of a key's quotas say which limit is full now.",
      ),
      h("div", { class: "panel", id: "refused" }, refused),
    ),
  );
  feed.listen(() => feed.last && fill(refused, refusals(feed.last)), signal);
  poll(look, EVERY_MS, signal);
}
