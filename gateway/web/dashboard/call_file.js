// Calls and refusals as one file, in the names of the API.

import { isoTime } from "./csv.js";

const FILE = [
  "kind", "id", "key", "team", "endpoint", "path", "model", "requested_model", "served_model", "upstream", "status", "ended", "code", "param", "limit", "message",
  "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage_source", "cost_usd", "first_byte_s", "duration_s", "attempts", "client_request_id", "user",
];
export const FILE_COLUMNS = [{ saved: [{ title: "time", of: (row) => isoTime(row.time) }, ...FILE.map((title) => ({ title, of: (row) => row[title] }))] }];

