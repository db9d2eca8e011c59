// The page: who looks, at which view, and what has gone wrong. Start here.

import { Refused, SIGN_IN, endSession, get, takeFromAddress, token, useSession, whenSignedOut } from "./api.js";
import { detailAddress, keepAddress, noteEntry, readAddress, takeKeptAddress } from "./address.js";
import { fill, h } from "./dom.js";
import { Feed } from "./feed.js";
import { rate } from "./format.js";
import { perSecond } from "./rates.js";
import { failed, loading } from "./states.js";
import { forgetTriedKey } from "./tried_key.js";
import { LEFT, attempt, closeShown } from "./dialog.js";
import { openDetail } from "./call.js";
import { borrowToken, endElsewhere, whenEnded } from "./shared_token.js";
import { audit } from "./view_audit.js";
import { BILL_NEEDS, bills } from "./view_bills.js";
import { calls } from "./view_calls.js";
import { mine } from "./view_mine.js";
import { keys } from "./view_keys.js";
import { models } from "./view_models.js";
import { overview } from "./view_overview.js";
import { playground } from "./view_playground.js";
import { onZone } from "./zone.js";

// Each fills the page and may return a function that is called with the part behind its name in the address, and with
// that name.
const VIEWS = { overview, mine, calls, keys, models, bills, playground, audit };
const PART_OF = { upstreams: "models", quotas: "keys", teams: "keys", people: "keys", statement: "bills", invoice: "bills" }; // addresses that lead to a part of a view
// The operations without one of which a view has nothing to show.
const NEEDS = { overview: ["GET /admin/api/teams"], models: ["GET /admin/api/models"], bills: BILL_NEEDS, audit: ["GET /admin/api/audit"] };

const the = (id) => document.getElementById(id);
const main = the("view"); // what is opened out of it is shown in its place
let session = null; // {role, team, may, can, publicUrl, isPerson, isLive, feed, ended}
let view = new AbortController();
let current = { name: "", go: null };

takeFromAddress();
noteEntry(null);
whenSignedOut(() => session && signOut(session.isPerson ? "Your session is over." : "This token is not right any more."));
whenEnded(() => session && signOut("You signed out in another tab."));
start(true);

/** Show the page of who is signed in. `mayBorrow`: with the token of another tab, where this one has none. */
async function start(mayBorrow = false) {
  try {
    begin(await get("session"));
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      if (mayBorrow && !token.get() && (await borrowToken())) return start();
      signOut(token.get() ? "This token is not right." : "", error.code === "sign_in_required");
    }
    else if (error instanceof Refused && error.status === 429) signOut(error.message);
    else fill(main, failed(error, () => start()));
  }
}

function begin({ role, name, team, operations, csrf, version, public_url }) {
  const ended = new AbortController();
  const isLive = operations.includes("GET /admin/api/live");
  const can = (operation) => operations.includes(operation);
  const isOwn = role === "member" || role === "key" || csrf !== null;
  const may = (name) => (name === "mine" ? isOwn : !NEEDS[name] || NEEDS[name].some(can));
  useSession(csrf);
  session = { role, team, may, can, ownKey: role === "key" ? name.replace(/^key /, "") : null, publicUrl: public_url, isPerson: csrf !== null, isLive, ended, feed: new Feed(ended.signal, isLive) };
  const who = [name.replace(/^(person|token|key) /, ""), role, team].filter(Boolean).join(" · ");
  the("version").textContent = ` Gateway ${version}. Signed in as ${who}.`;
  for (const id of ["nav", "leave"]) the(id).hidden = false;
  the("pulse").hidden = !isLive;
  the("role").hidden = false;
  the("role").textContent = who;
  the("role").title = who;
  for (const name of Object.keys(VIEWS)) document.querySelector(`#nav a[href="#${name}"]`).hidden = !may(name);
  session.feed.listen(showPulse, ended.signal);
  takeKeptAddress();
  current = { name: "", go: null };
  route();
}

function signOut(why, hasSignIn = session?.isPerson) {
  session?.ended.abort();
  session = null;
  view.abort();
  token.drop();
  forgetTriedKey();
  the("version").textContent = the("version").textContent.replace(/ Signed in as .*/, "");
  for (const dialog of document.querySelectorAll("dialog")) dialog.close(LEFT);
  for (const id of ["nav", "leave", "pulse", "role", "banner"]) the(id).hidden = true;
  const trouble = h("p", { class: "trouble", role: "alert" }, why);
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const enter = h("button", { type: "submit", class: "primary" }, "Sign in");
  const byToken = h(
    "div",
    { class: "by-token" },
    h("p", null, "With the admin token, the viewer token or another token of this gateway’s configuration, or with your own API key. It is kept in tabs of this page only, until the last one is closed."),
    h("input", { type: "text", autocomplete: "username", value: "gateway", hidden: true }), // for password managers
    h("label", { for: "token" }, "Token"),
    field,
    trouble,
    h("footer", null, enter),
  );
  if (hasSignIn) enter.classList.remove("primary");
  fill(
    main,
    h(
      "form",
      {
        class: "sign-in panel",
        oninput: () => fill(trouble),
        onsubmit: (event) => {
          event.preventDefault();
          attempt(enter, trouble, async () => {
            token.set(field.value.trim());
            await start();
          });
        },
      },
      h("h2", null, "Sign in"),
      hasSignIn && h("a", { id: "sign-in", class: "button primary", href: SIGN_IN.href, onclick: keepAddress }, "Sign in with your account"),
      hasSignIn ? h("details", { open: !hasSignIn || Boolean(why) }, h("summary", null, "Use a token"), byToken) : byToken,
    ),
  );
  document.title = "Sign in · Completions gateway";
  (the("sign-in") ?? field).focus();
}

/** Show what the address names. `before`: the address that was shown, of which only what has changed is shown anew; null: none. */
function route(before = null) {
  if (location.hash.startsWith("#token=")) {
    takeFromAddress();
    session?.ended.abort();
    start();
    return;
  }
  if (!session) return;
  closeShown("detail");
  if (before === null || detailAddress(null, before) !== detailAddress(null)) show();
  const detail = readAddress().query.get("call");
  if (detail) openDetail(detail, current.name === "mine" && session.role !== "member" && session.role !== "key");
}

function show() {
  closeShown("page");
  const { view: kind, name: address, query } = readAddress();
  const name = PART_OF[kind] ?? kind;
  const chosen = VIEWS[name] && session.may(name) ? name : Object.keys(VIEWS).find(session.may);
  if (chosen === current.name && current.go) {
    current.go(address, kind);
    return;
  }
  view.abort();
  view = new AbortController();
  for (const link of the("nav").children) {
    const isOurs = link.getAttribute("href") === `#${chosen}`;
    if (isOurs) {
      link.setAttribute("aria-current", "page");
      the("nav").scrollLeft = link.offsetLeft - the("nav").offsetLeft - (the("nav").clientWidth - link.offsetWidth) / 2;
    }
    else link.removeAttribute("aria-current");
  }
  document.title = `${document.querySelector(`#nav a[href="#${chosen}"]`).textContent} · Completions gateway`;
  fill(main, loading());
  current = { name: chosen, go: VIEWS[chosen](main, { ...session, signal: view.signal, address, kind, query }) };
}

function showPulse(feed) {
  const speed = feed.last && perSecond(feed.samples, (sample) => sample.requests);
  const isOn = feed.error === null;
  the("pulse").classList.toggle("off", !isOn);
  fill(the("pulse"), !isOn ? "not live" : speed === null ? "live" : [rate(speed), h("span", { class: "unit" }, "calls/s")]);
  the("banner").hidden = isOn;
  if (!isOn) the("banner").textContent = `${feed.error.message} The numbers below may be old; trying again.`;
}

onZone(() => {
  current = { name: "", go: null };
  route();
});

addEventListener("hashchange", ({ oldURL }) => {
  const before = oldURL ? new URL(oldURL).hash || "#" : null;
  noteEntry(before);
  route(before);
});
the("leave").addEventListener("click", async () => {
  const isPerson = session?.isPerson;
  endElsewhere();
  const elsewhere = await endSession();
  signOut("", isPerson);
  if (elsewhere) location.assign(elsewhere);
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const field = main.querySelector(".filter");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});
