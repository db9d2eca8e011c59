// The facts of an object, by name.

import { h } from "./dom.js";
import { minute } from "./format.js";

/** A list of facts: what each is called, and what it is. `look`: a class of the values. */
export const facts = (pairs, look = null) =>
  h(
    "dl",
    { class: "facts" },
    Object.entries(pairs).map(([name, value]) => [
      h("dt", null, name),
      h("dd", { class: look }, value instanceof Node ? value : String(value)),
    ]),
  );

export const keptIn = (thing) => (thing.managed_by === "file" ? "the configuration file" : "the store");

/** When a key or a team was made, changed, revoked, as far as that is known. */
export const times = (thing) =>
  Object.fromEntries(
    Object.entries({ Made: thing.created_at, Changed: thing.updated_at, Revoked: thing.revoked_at })
      .filter(([, time]) => time)
      .map(([name, time]) => [name, `${minute(time)} UTC`]),
  );

/** The name of a team, as a link where the user can open its page. */
export const teamName = (name, can) =>
  can("GET /admin/api/teams") ? h("a", { class: "mono", href: `#teams/${encodeURIComponent(name)}` }, name) : h("span", { class: "mono" }, name);
