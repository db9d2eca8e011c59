// The second answer: what is wrong now, and since when. Nothing that is well is in it.

import { address } from "./address.js";
import { get } from "./api.js";
import { h, refill } from "./dom.js";
import { clock, count, fullMoment, recent, span } from "./format.js";
import { into } from "./states.js";

const KINDS = { upstream: ["failing", "full"], store: ["store away", "full"], quota: ["spent", "near"], spend: ["unusual", "near"], price: ["no price", "near"], bill: ["bill differs", "near"], reading: ["bill not read", "near"], account: ["account ends", "near"] };
const OF_BILLS = ["bill", "reading", "account"];

const LISTS = { quota: "The refusals", bill: "Days and causes", reading: "The bill", account: "The account" };

/** The kind of thing and the name in a problem's subject: `key:alice`, `shaky`. */
function thing({ kind, subject }) {
  if (kind === "upstream") return ["upstreams", subject];
  if (kind === "price") return ["models", subject];
  if (OF_BILLS.includes(kind)) return ["bills", subject];
  const [of, ...rest] = subject.split(":");
  return [{ key: "keys", team: "teams" }[of] ?? null, rest.join(":") || subject];
}

/** Where the counted things are listed. */
function listed({ kind, subject }) {
  const [view, name] = thing({ kind, subject });
  if (kind === "upstream") return address("calls", "", { upstream: name });
  if (kind === "quota" && view === "keys") return address("calls", "", { key: name, outcome: "refused" });
  if (kind === "quota" && view === "teams") return address("calls", "", { team: name, outcome: "refused" });
  if (kind === "price") return address("calls", "", { model: name });
  if (view === "bills") return address(view, name);
  if (kind === "spend") return view === "keys" ? address("calls", "", { key: name }) : address("overview", "", { range: "today", group: "key", metric: "cost" });
  return null;
}

function row(problem, at, hasPage) {
  const [view, name] = thing(problem);
  const [said, kind] = KINDS[problem.kind];
  const list = listed(problem);
  return h(
    "li",
    { class: "problem", data: { problem: problem.kind, subject: problem.subject } },
    h(
      "p",
      { class: "problem-head" },
      h("span", { class: `pill ${kind}` }, said),
      view && hasPage(view) ? h("a", { href: address(view, name) }, name) : h("b", null, name),
      h("span", { class: "moment", title: fullMoment(problem.since) }, `since ${recent(problem.since).slice(0, -3)}`, h("small", null, ` · ${span(Math.max(0, (Date.parse(at) - Date.parse(problem.since)) / 1000))}`)),
    ),
    h("p", { class: "more" }, problem.text, list && [problem.text.endsWith('."') ? " " : ". ", h("a", { href: list }, LISTS[problem.kind] ?? (problem.subject.startsWith("person:") ? "Today by key" : "The calls"))]),
  );
}

/** The answer as a section; `look` asks again, and calls `tell` with the state of the upstreams. */
export function problemPanel(signal, { hasPage, tell }) {
  const place = h("div");
  const checked = h("small", { class: "note", role: "status" });
  const look = () =>
    into(
      place,
      signal,
      async () => {
        const { at, data, upstreams } = await get("problems", null, signal);
        refill(checked, "last checked ", h("span", { class: "moment" }, clock(at).slice(0, 5)));
        refill(
          place,
          data.length
            ? h("ul", { class: "problems" }, data.map((each) => row(each, at, hasPage)))
            : h("p", { class: "all-well" }, h("span", { class: "pill fine" }, "Nothing is wrong"), ` with upstreams, the store, quotas, spend by key and person, prices, and bills.`),
        );
        checked.dataset.problems = count(data.length);
        tell?.(upstreams);
      },
      look,
    );
  const node = h(
    "section",
    { class: "answer", "aria-labelledby": "now-title" },
    h("div", { class: "bar" }, h("h2", { id: "now-title" }, "Now"), checked),
    h("div", { class: "panel" }, place),
  );
  return { node, look };
}
