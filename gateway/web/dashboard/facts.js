// The facts of an object, by name.

import { address } from "./address.js";
import { h } from "./dom.js";
import { minute, zoneOf } from "./format.js";

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
      .map(([name, time]) => [name, `${minute(time)} ${zoneOf(new Date(time))}`]),
  );

/** A name, as a link to its page where the user can open it. */
export const linked = (group, name, shown, linkedTo) => (name && linkedTo(group) ? h("a", { href: address(`${group}s`, name), title: shown }, shown) : h("span", { title: shown }, shown));

/** The name of a person, as a link where the user can open her page. */
export const personName = (name, can) => (can("GET /admin/api/people") ? h("a", { href: `#people/${encodeURIComponent(name)}`, title: name }, name) : h("span", { title: name }, name));

/** The name of a team, as a link where the user can open its page. */
export const teamName = (name, can) =>
  can("GET /admin/api/teams") ? h("a", { class: "mono", href: `#teams/${encodeURIComponent(name)}`, title: name }, name) : h("span", { class: "mono" }, name);
