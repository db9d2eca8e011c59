// The address of what is shown: #view/name?range=7d&group=team. A link shows what its sender saw.

/** The parts of the address: `view`, `name` (decoded) and `query`. */
export function readAddress(hash = location.hash) {
  const [, view, name, query] = /^#?([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/.exec(hash) ?? [];
  return { view: view ?? "", name: decodeURIComponent(name ?? ""), query: new URLSearchParams(query ?? "") };
}

/** The address of a view, of a thing in it, and of its settings; those without a value are left out. */
export function address(view, name = "", settings = {}) {
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value));
  return `#${view}${name ? `/${encodeURIComponent(name)}` : ""}${query.size ? `?${query}` : ""}`;
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
  history.replaceState({ trail: trail.slice(0, -1) }, "", trail.at(-1) ?? otherwise);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
