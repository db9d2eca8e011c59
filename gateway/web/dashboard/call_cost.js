// The cost of one call, asked for with the key that made it: its record is written a moment after its end.

const BASE = new URL("admin/api/requests/", document.baseURI);
const TRIES = 8;
const AGAIN_MS = 400;

/** The cost in US dollars of the call with this id; null: unknown, or there is no record yet. */
export async function costOf(secret, id, signal) {
  for (let attempt = 0; attempt < TRIES && id && !signal.aborted; attempt++) {
    const response = await fetch(new URL(encodeURIComponent(id), BASE), {
      headers: { Authorization: `Bearer ${secret}` },
      cache: "no-store",
      credentials: "omit",
      signal,
    });
    if (response.ok) return (await response.json()).call?.cost_usd ?? null;
    if (response.status !== 404) return null;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
  return null;
}
