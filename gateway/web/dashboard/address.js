// The address of what is shown: #view/name?range=7d&group=team. A link shows what its sender saw.

/** The parts of the address: `view`, `name` (decoded, or as it is where it was written by hand) and `query`. */
export function readAddress(hash = location.hash) {
  const [, view, name, query] = /^#?([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/.exec(hash) ?? [];
  return { view: view ?? "", name: decoded(name ?? ""), query: new URLSearchParams(query ?? "") };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a view, of a thing in it, and of its settings; those without a value are left out. */
export function address(view, name = "", settings = {}) {
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value));
  return `#${view}${name ? `/${encodeURIComponent(name)}` : ""}${query.size ? `?${query}` : ""}`;
}

/** The address of one call or refusal, shown over what is shown now; without an id: of what is shown alone. */
export function detailAddress(id, hash = location.hash) {
  const { view, name, query } = readAddress(hash);
  return address(view, name, { ...Object.fromEntries(query), call: id });
}

/** Another address for what is shown, without another entry in the history. */
export const replaceAddress = (hash) => history.replaceState(history.state, "", hash);

/** Put settings of a view that is shown into the address. */
export function noteSettings(view, settings) {
  const { name, query } = readAddress();
  replaceAddress(address(view, name, { ...Object.fromEntries(query), ...settings }));
}

const LONGEST = 50;
let trail = []; // the addresses of this page whose links led to the one that is shown, the newest last

/** Note in the history how the user came to this address: `from` another one of this page; null: from elsewhere. */
export function noteEntry(from) {
  trail = history.state?.trail ?? (from === null ? [] : [...trail, from].slice(-LONGEST));
  history.replaceState({ trail }, "");
}

/** Show what the user came from instead, or else the address `otherwise`, without another entry in the history. */
export function goBack(otherwise) {
  const oldURL = location.href;
  history.replaceState({ trail: trail.slice(0, -1) }, "", trail.at(-1) ?? otherwise);
  dispatchEvent(new HashChangeEvent("hashchange", { oldURL, newURL: location.href }));
}

const KEPT_AS = "gateway-address";

/** Keep the address while the browser is at the identity provider, which gets no part of it. */
export const keepAddress = () => sessionStorage.setItem(KEPT_AS, location.hash);

/** Go on at the address that was kept, once, unless another one was asked for meanwhile. */
export function takeKeptAddress() {
  const kept = sessionStorage.getItem(KEPT_AS);
  sessionStorage.removeItem(KEPT_AS);
  if (kept && !location.hash) replaceAddress(kept);
}
