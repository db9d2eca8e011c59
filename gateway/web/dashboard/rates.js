// From counters to rates: what happened between two samples of /admin/api/live. Pure.

const LOOK_BACK_S = 60;
const SMOOTH_S = 10;

/** The counters' growth; null where there is no telling: a restart lies between the samples. */
function grown(one, other, pick) {
  const difference = pick(other) - pick(one);
  return difference < 0 ? null : difference;
}

/** The oldest sample that is not further back than this, of those before the last. */
function behind(samples, back_s) {
  const last = samples.at(-1);
  return samples.find((sample) => sample !== last && last.time - sample.time <= back_s + 1) ?? null;
}

/** Per second, over the last seconds; null while there is one sample only. */
export function perSecond(samples, pick, back_s = SMOOTH_S) {
  const from = behind(samples, back_s);
  if (!from) return null;
  const difference = grown(from, samples.at(-1), pick);
  return difference === null ? null : difference / (samples.at(-1).time - from.time);
}

/** Each step's rate, for a small curve. */
export function curve(samples, pick) {
  return samples.slice(1).map((sample, place) => {
    const difference = grown(samples[place], sample, pick);
    return difference === null ? 0 : difference / (sample.time - samples[place].time);
  });
}

/** How much a counter has grown within the last minute, or since there are samples. */
export function lately(samples, pick) {
  const from = behind(samples, LOOK_BACK_S);
  return from ? grown(from, samples.at(-1), pick) : null;
}

/**
 * A quantile of what was observed lately, in seconds, as Prometheus' histogram_quantile reckons it: inside a bucket,
 * linearly; beyond the last bound, that bound. Null where nothing was observed.
 */
export function quantile(samples, pick, share) {
  const from = behind(samples, LOOK_BACK_S);
  if (!from) return null;
  const { le, counts } = pick(samples.at(-1));
  const before = pick(from)?.counts ?? [];
  const grew = counts.map((number, place) => number - (before[place] ?? 0));
  const all = grew.at(-1) ?? 0;
  if (all <= 0) return null;
  const rank = share * all;
  const place = grew.findIndex((number) => number >= rank);
  if (place >= le.length) return le.at(-1);
  const low = place ? le[place - 1] : 0;
  const below = place ? grew[place - 1] : 0;
  return low + (le[place] - low) * ((rank - below) / (grew[place] - below || 1));
}
