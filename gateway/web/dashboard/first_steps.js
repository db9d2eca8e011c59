// The first steps of an operator, where nothing was called yet.

import { h } from "./dom.js";

/** The steps that `can` permits. */
export const firstSteps = (can) =>
  h(
    "section",
    { class: "panel", id: "first-steps" },
    h("h2", null, "No call yet"),
    h(
      "ol",
      null,
      can("POST /admin/api/keys") && h("li", null, h("a", { href: "#keys" }, "Make a key"), ": its secret is shown once, with the settings of each tool."),
      h("li", null, "Make the first call: with these settings, or in the ", h("a", { href: "#playground" }, "playground"), "."),
      can("POST /admin/api/teams") && h("li", null, h("a", { href: "#teams" }, "Make a team"), " with a budget: it appears here beside the spend."),
    ),
  );
