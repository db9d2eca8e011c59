// Calls and refusals in one list, the newest first, with filters in the address and pages without an end.

import { address as addressOf, detailAddress, noteSettings, replaceAddress } from "./address.js";
import { get, getCsv } from "./api.js";
import { columns, totalOf } from "./call.js";
import { FILE_COLUMNS } from "./call_file.js";
import { tableAsCsv } from "./csv.js";
import { WIDE, calmly, fill, h } from "./dom.js";
import { count, day, fromField, toField, zoneOf } from "./format.js";
import { hasPages } from "./group_table.js";
import { MergedPages } from "./merged_pages.js";
import { poll } from "./poll.js";
import { RefusedLately } from "./refusals.js";
import { into } from "./states.js";
import { Table } from "./table.js";
import { filterField } from "./table_parts.js";

const EVERY_MS = 10_000;
const REFUSED_EVERY_MS = 60_000;
const SAVED_AT_ONCE = 1000;
const SAVED_AT_MOST = 100_000; // rows of a file with refusals; that of calls alone has no end

// The query of each outcome: `only` one of the two lists, or a filter.
const OUTCOMES = {
  "": { title: "every outcome" },
  calls: { title: "calls only", only: "call" },
  refused: { title: "refused by the gateway", only: "refusal" },
  failed: { title: "failed or cut off", only: "call", ended: "error" },
  left: { title: "client left", only: "call", ended: "client_gone" },
  lost: { title: "lost", only: "call", ended: "lost" },
  "4xx": { title: "status 4xx", status: "4xx" },
  429: { title: "status 429", status: "429" },
  "5xx": { title: "status 5xx", status: "5xx" },
};
const STATUS = /^[1-5](xx|\d\d)$/;
const SUGGESTED = ["key", "team", "model", "upstream"];
const SUGGESTIONS = 500;
const SINCE = { "": "any time", "1h": "the last hour", "1d": "the last day", "7d": "the last 7 days" };
const TEXTS = { key: "Key", team: "Team", person: "Person", model: "Model", upstream: "Upstream", code: "Error code", id: "Request id", status: "Status", user: "User", tag: "Tag name:value" };

/** The lists that settings ask for, with the filters of each. */
function listsOf(settings) {
  const { only, ended, status = STATUS.test(settings.status) ? settings.status : "" } = OUTCOMES[settings.outcome] ?? OUTCOMES[""];
  const { key, team, person, model, from, id, upstream, code, user, tag } = settings;
  const since = from ? `${from}:00Z` : settings.since;
  const until = settings.until && `${settings.until}:59Z`; // its minute is included
  const shared = { key, team, person, model, since, until, id, status, user, tag: tag.includes(":") ? tag : "" };
  return [
    { kind: "call", path: "calls", query: { ...shared, upstream, ended } },
    { kind: "refusal", path: "refusals", query: { ...shared, code } },
  ].filter(({ kind }) => (!only || kind === only) && !(kind === "call" && code) && !(kind === "refusal" && upstream));
}

export function calls(main, { can, signal, address, query }) {
  const names = [...Object.keys(TEXTS), "outcome", "since", "from", "until"];
  const settings = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
  if (address) settings.key = address;
  const place = h("div");
  const refused = new RefusedLately(signal);
  const note = h("p", { class: "note", role: "status" });
  const more = h("button", { type: "button", id: "older", hidden: true }, "Older");
  const table = new Table(columns(hasPages(can)), {
    caption: "Newest calls and refusals",
    name: (row) => row.id,
    sort: null,
    href: (row) => detailAddress(row.id),
    total: totalOf,
    whole: async () => {
      const lists = listsOf(settings);
      if (lists.every(({ kind }) => kind === "call")) return getCsv("calls", lists[0].query, signal);
      return tableAsCsv(FILE_COLUMNS, await new MergedPages(lists, signal, SAVED_AT_ONCE).take(SAVED_AT_MOST));
    },
  });
  let pages = null;
  let rows = [];
  let turns = 0;

  function draw() {
    const isNarrow = Object.values(settings).some(Boolean);
    table.of.none = isNarrow ? "No call and no refusal has all of this." : "No calls yet. A call appears here when it has ended.";
    if (!place.contains(table.node)) fill(place, table.node);
    table.show(rows);
    more.hidden = pages.isAtEnd;
    fill(note, rows.length > 0 && (pages.isAtEnd ? `All ${count(rows.length)}.` : `The newest ${count(rows.length)}.`));
  }

  const look = () =>
    into(
      place,
      signal,
      async () => {
        const mine = ++turns;
        const asked = new MergedPages(listsOf(settings), signal);
        const found = await asked.take();
        if (mine !== turns) return; // other filters were chosen meanwhile
        [pages, rows] = [asked, found];
        draw();
      },
      look,
    );

  more.addEventListener("click", () =>
    into(place, signal, async () => {
      const asked = pages;
      const found = await asked.take();
      if (asked !== pages) return;
      rows = [...rows, ...found];
      draw();
    }),
  );

  const set = (changes) => {
    Object.assign(settings, changes);
    fill(hint, unread().join(" "));
    reset.hidden = !Object.values(settings).some(Boolean);
    if (address) replaceAddress(addressOf("calls", "", settings));
    else noteSettings("calls", changes);
    look();
  };
  const setSoon = calmly(set);
  const field = (name) => {
    const input = filterField(TEXTS[name], (text) => setSoon({ [name]: text.trim() }));
    input.title = TEXTS[name];
    if (SUGGESTED.includes(name)) input.setAttribute("list", `known-${name}`);
    return Object.assign(input, { name, value: settings[name] });
  };
  /** Names that occur in the calls shown, or that the last 30 days have. */
  const known = h("span", { hidden: true });
  const suggest = async () => {
    const found = await Promise.all(SUGGESTED.map((group) => get("usage", { group_by: group, since: day(29), limit: SUGGESTIONS }, signal)));
    fill(known, SUGGESTED.map((group, place) => h("datalist", { id: `known-${group}` }, found[place].data.map((row) => row[group] && h("option", { value: row[group] })))));
  };
  const reset = h("button", { type: "button", id: "reset", class: "quiet", hidden: !Object.values(settings).some(Boolean) }, "Clear all filters");
  reset.addEventListener("click", () => {
    for (const control of filters.querySelectorAll("input, select")) control.value = "";
    set(Object.fromEntries(names.map((name) => [name, ""])));
  });
  const select = (name, label, options) =>
    h(
      "select",
      { "aria-label": label, name, value: settings[name], onchange: (event) => set({ [name]: event.target.value }) },
      Object.entries(options).map(([value, title]) => h("option", { value }, title)),
    );
  const hint = h("p", { class: "trouble", role: "status" });
  /** The settings that cannot be used, in words. */
  const unread = () =>
    [
      settings.status && !STATUS.test(settings.status) && "A status is a number such as 429, or 5xx.",
      settings.tag && !settings.tag.includes(":") && "A tag is NAME:VALUE, such as project:search.",
    ].filter(Boolean);
  const outcomes = Object.fromEntries(Object.entries(OUTCOMES).map(([name, { title }]) => [name, title]));

  const filters = h(
    "div",
    { class: "bar filters" },
    Object.keys(TEXTS).map(field),
    select("outcome", "Outcome", outcomes),
    select("since", "Since", SINCE),
    Object.entries({ from: `from (${zoneOf()})`, until: `until (${zoneOf()})` }).map(([name, title]) =>
      h(
        "label",
        { class: "until" },
        title,
        h("input", { type: "datetime-local", name, value: toField(settings[name]), onchange: (event) => set({ [name]: fromField(event.target.value) }) }),
      ),
    ),
    reset,
  );
  fill(hint, unread().join(" "));
  suggest().catch(() => {}); // then nothing is suggested
  const wide = matchMedia(WIDE);
  const box = h("details", { class: "filter-box", open: wide.matches || Object.values(settings).some(Boolean) }, h("summary", null, "Filters"), filters);
  wide.addEventListener("change", () => wide.matches && (box.open = true), { signal });
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "calls-title" },
      h("div", { class: "bar" }, h("h2", { id: "calls-title" }, "Calls and refusals"), note),
      box,
      hint,
      known,
      h("div", { class: "panel flush" }, place),
      more,
    ),
    h(
      "section",
      { "aria-labelledby": "refused-title" },
      h("h2", { id: "refused-title" }, "Refused by the gateway since yesterday"),
      h("p", { class: "note" }, "A request that was refused never reached an upstream and cost nothing."),
      h("div", { class: "panel", id: "refused" }, refused.node),
    ),
  );
  poll(() => refused.look(), REFUSED_EVERY_MS, signal);
  // The list is not refreshed while older pages are open.
  poll(() => (pages && rows.length > 100 ? true : look()), EVERY_MS, signal);
}
