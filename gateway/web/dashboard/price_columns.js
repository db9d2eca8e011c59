// The present prices of a model's tokens, as columns of tables of models.

import { NOTHING, usd } from "./format.js";

const rate = (title, row, hint) => ({
  title,
  hint,
  isNumber: true,
  sort: (model) => model.price?.[row] ?? null,
  show: (model) => (model.price?.[row] === undefined ? NOTHING : usd(model.price[row])),
});

export const RATES = [
  rate("Input", "input", "US dollars per million prompt tokens"),
  rate("Cached", "cached_input", "US dollars per million cached prompt tokens"),
  rate("Output", "output", "US dollars per million completion tokens"),
];
