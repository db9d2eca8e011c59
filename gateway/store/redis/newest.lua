-- Some of the newest records in one text: a reply of many parts costs the reading worker ten times as much.
--
-- KEYS: the records. ARGV: from where back, as XREVRANGE takes it; how many at most; then texts that each wanted record
-- has, so that of many records those few are sent.
-- Returns how many there were, the id of the last one, and the wanted records with U+001E between, which no record
-- holds; each has its id and a space before it.

local found = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
local texts = {}
local function is_wanted(text)
  for i = 3, #ARGV do
    if not string.find(text, ARGV[i], 1, true) then
      return false
    end
  end
  return true
end

for _, entry in ipairs(found) do
  if is_wanted(entry[2][2]) then
    texts[#texts + 1] = entry[1] .. ' ' .. entry[2][2]
  end
end
return { #found, #found > 0 and found[#found][1] or '', table.concat(texts, '\30') }
