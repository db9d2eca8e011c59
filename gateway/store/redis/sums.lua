-- The sums of some groups on some days, each day's in one text, in the form of scan.lua.
--
-- KEYS: the sums of days. ARGV: groups, at most a thousand.
-- Returns for each day its groups and numbers by turns, with U+001E between.

local texts = {}
for place, key in ipairs(KEYS) do
  local found, parts = redis.call('HMGET', key, unpack(ARGV)), {}
  for i = 1, #ARGV do
    if found[i] then
      parts[#parts + 1] = ARGV[i]
      parts[#parts + 1] = found[i]
    end
  end
  texts[place] = table.concat(parts, '\30')
end
return texts
