-- Some of the newest records in one text: a reply of many parts costs the reading worker ten times as much.
--
-- KEYS: the records. ARGV: from where back, as XREVRANGE takes it; how many at most.
-- Returns how many there were, the id of the last one, and the records with U+001E between, which no record holds;
-- each has its id and a space before it.

local found = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
local texts = {}
for place, entry in ipairs(found) do
  texts[place] = entry[1] .. ' ' .. entry[2][2]
end
return { #found, #found > 0 and found[#found][1] or '', table.concat(texts, '\30') }
