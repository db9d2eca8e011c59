// The page: who looks, at which view, and what has gone wrong. Start here.

import { Refused, get, takeFromAddress, token, whenSignedOut } from "./api.js";
import { fill, h } from "./dom.js";
import { Feed } from "./feed.js";
import { rate } from "./format.js";
import { perSecond } from "./rates.js";
import { failed, loading } from "./states.js";
import { attempt } from "./dialog.js";
import { audit } from "./view_audit.js";
import { calls } from "./view_calls.js";
import { keys } from "./view_keys.js";
import { overview } from "./view_overview.js";
import { quotas } from "./view_quotas.js";
import { teams } from "./view_teams.js";

// Each fills the page and may return a function that is called with what stands behind its name in the address.
const VIEWS = { overview, calls, quotas, keys, teams, audit };
const FOR_ADMINS = ["audit"];

const the = (id) => document.getElementById(id);
const main = the("main");
let session = null; // {role, feed, ended}
let view = new AbortController();
let current = { name: "", go: null };

takeFromAddress();
whenSignedOut(() => signOut("This token is not right any more."));
start();

async function start() {
  if (!token.get()) {
    signOut("");
    return;
  }
  try {
    begin(await get("session"));
  } catch (error) {
    if (error instanceof Refused && error.status === 401) signOut("This token is not right.");
    else if (error instanceof Refused && error.status === 429) signOut(error.message);
    else fill(main, failed(error, start));
  }
}

function begin({ role, version }) {
  const ended = new AbortController();
  session = { role, ended, feed: new Feed(ended.signal) };
  the("version").textContent = ` Gateway ${version}.`;
  for (const id of ["nav", "leave", "pulse"]) the(id).hidden = false;
  the("role").hidden = role !== "viewer";
  for (const name of FOR_ADMINS) document.querySelector(`#nav a[href="#${name}"]`).hidden = role !== "admin";
  session.feed.listen(showPulse, ended.signal);
  current = { name: "", go: null };
  route();
}

function signOut(why) {
  session?.ended.abort();
  session = null;
  view.abort();
  token.drop();
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  for (const id of ["nav", "leave", "pulse", "role", "banner"]) the(id).hidden = true;
  const trouble = h("p", { class: "trouble", role: "alert" }, why);
  const field = h("input", {
    type: "password",
    id: "token",
    autocomplete: "current-password",
    required: true,
    spellcheck: "false",
  });
  const enter = h("button", { type: "submit", class: "primary" }, "Sign in");
  fill(
    main,
    h(
      "form",
      {
        class: "sign-in panel",
        onsubmit: (event) => {
          event.preventDefault();
          attempt(enter, trouble, async () => {
            token.set(field.value.trim());
            await start();
          });
        },
      },
      h("h1", null, "Sign in"),
      h(
        "p",
        null,
        "With the admin token, or the viewer token, of this gateway’s configuration. It is kept for this tab only.",
      ),
      h("input", { type: "text", autocomplete: "username", value: "gateway", hidden: true }), // for password managers
      h("label", { for: "token" }, "Token"),
      field,
      trouble,
      h("footer", null, enter),
    ),
  );
  document.title = "Sign in · Completions gateway";
  field.focus();
}

function route() {
  if (location.hash.startsWith("#token=")) {
    takeFromAddress();
    session?.ended.abort();
    start();
    return;
  }
  if (!session) return;
  const [name, ...rest] = location.hash.slice(1).split("/");
  const chosen = VIEWS[name] && !(session.role !== "admin" && FOR_ADMINS.includes(name)) ? name : "overview";
  const address = decodeURIComponent(rest.join("/"));
  if (chosen === current.name && current.go) {
    current.go(address);
    return;
  }
  view.abort();
  view = new AbortController();
  for (const link of the("nav").children) {
    const isOurs = link.getAttribute("href") === `#${chosen}`;
    if (isOurs) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${chosen[0].toUpperCase()}${chosen.slice(1)} · Completions gateway`;
  fill(main, loading());
  current = { name: chosen, go: VIEWS[chosen](main, { ...session, signal: view.signal, address }) };
}

function showPulse(feed) {
  const speed = feed.last && perSecond(feed.samples, (sample) => sample.requests);
  const isOn = feed.error === null;
  the("pulse").classList.toggle("off", !isOn);
  the("pulse").textContent = !isOn ? "not live" : speed === null ? "live" : `${rate(speed)} calls/s`;
  the("banner").hidden = isOn;
  if (!isOn) the("banner").textContent = `${feed.error.message} The numbers below may be old; trying again.`;
}

addEventListener("hashchange", route);
the("leave").addEventListener("click", () => signOut(""));
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const field = main.querySelector(".filter");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});
