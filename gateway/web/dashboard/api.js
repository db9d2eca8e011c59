// The admin API, and the token that opens it: kept by this tab and lent to other tabs (shared_token.js), sent as a header, never in
// an address. Without a token the session of a person who signed in counts: a cookie that no script can read, and for changes a second token.

const BASE = new URL("admin/api/", document.baseURI);
export const SIGN_IN = new URL("admin/sign-in", document.baseURI);
const SIGN_OUT = new URL("admin/sign-out", document.baseURI);
const KEPT_AS = "gateway-token";
const PATIENCE_MS = 60_000;

/** A failed request, with a message for users. `status` is 0 if there was no answer. */
export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
  }

  get isStoreAway() {
    return this.status === 503 && this.code === "store_unavailable";
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT_AS),
  set: (value) => sessionStorage.setItem(KEPT_AS, value),
  drop: () => sessionStorage.removeItem(KEPT_AS),
};

/** `#token=...` of the address, once: it is gone from the address before anything else happens. */
export function takeFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + location.search);
  token.set(decodeURIComponent(found[1]));
}

let csrf = null;

/** The token of changes by session: `csrf` of the session, or null. */
export function useSession(token) {
  csrf = token;
}

/** End the session of a person, everywhere; the address to sign out of her identity provider at, or null. */
export async function endSession() {
  if (csrf === null) return null;
  const ended = await ask("POST", SIGN_OUT).catch(() => null);
  csrf = null;
  return ended?.provider_url ?? null;
}

let onSignedOut = () => {};

/** Set the function to call when the token is invalid or has expired. */
export function whenSignedOut(tell) {
  onSignedOut = tell;
}

async function said(answer) {
  try {
    const { error } = await answer.json();
    if (error?.message) return error;
  } catch {
    // not one of our answers
  }
  return { message: `The gateway answered with status ${answer.status}.` };
}

async function ask(method, path, { query, body, signal } = {}) {
  const address = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(name, value);
  }
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  if (!token.get() && csrf !== null && method !== "GET") headers["X-CSRF-Token"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const timeout = AbortSignal.timeout(PATIENCE_MS);
  let answer;
  try {
    answer = await fetch(address, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      referrerPolicy: "no-referrer",
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    if (answer.ok && answer.headers.get("content-type")?.startsWith("text/csv")) return await answer.text();
    if (answer.ok) return answer.status === 204 ? null : await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, { message: "The gateway does not answer." });
  }
  if (answer.status === 401) onSignedOut();
  throw new Refused(answer.status, await said(answer));
}

const AT_ONCE = 500;
const MOST = 10_000;

const named = (id) => encodeURIComponent(id);

export const get = (path, query, signal) => ask("GET", path, { query, signal });
/** The same rows as a file of comma-separated values. */
export const getCsv = (path, query, signal) => ask("GET", path, { query: { ...query, format: "csv" }, signal });
export const post = (path, body = {}) => ask("POST", path, { body });
export const patch = (path, body) => ask("PATCH", path, { body });
export const remove = (path) => ask("DELETE", path);
export const teamPath = (name) => `teams/${named(name)}`;
export const keyPath = (id, action) => `keys/${named(id)}${action ? `/${action}` : ""}`;

/** All that there is of keys or teams, a page at a time: `found`, and whether that is the whole. */
export async function every(path, query, signal) {
  const found = [];
  let after = "";
  do {
    const page = await get(path, { ...query, limit: AT_ONCE, after }, signal);
    found.push(...page.data);
    after = page.next;
  } while (after && found.length < MOST);
  return { found, isWhole: !after };
}
