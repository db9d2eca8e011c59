-- Some of the daily sums, each day's in one text: a reply of many parts costs the reading worker twenty times as much.
--
-- KEYS: the sums of days. ARGV: how many groups at once, more or less; a pattern of the groups, `*` for all; then where
-- to go on, for each day.
-- Returns for each day where to go on, 0 at its end; and groups and numbers by turns, with U+001E between, which no
-- name holds.

local texts = {}
for place, key in ipairs(KEYS) do
  local found = redis.call('HSCAN', key, ARGV[place + 2], 'MATCH', ARGV[2], 'COUNT', ARGV[1])
  texts[#texts + 1] = found[1]
  texts[#texts + 1] = table.concat(found[2], '\30')
end
return texts
