-- Some of the newest records in one text: a reply of many parts costs the reading worker ten times as much.
--
-- KEYS: the records, or another log. ARGV: from where back, as XREVRANGE takes it; how many at most; then what each wanted
-- record has, so that of many records few others are sent: the last second in which it may have begun; a pattern;
-- names as JSON has them, with U+001E between, one of which is its key or its team (of these three an empty text means
-- that all have it); and texts.
-- Returns how many there were, the id of the last one, and the wanted records with U+001E between, which no record
-- holds; each has its id and a space before it. A record that is not as expected is sent.

local find, match = string.find, string.match
local found = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
local until_s, pattern = tonumber(ARGV[3] or ''), ARGV[4] ~= '' and ARGV[4]
local names, texts = nil, {}
for name in string.gmatch(ARGV[5] or '', '[^\30]+') do
  names = names or {}
  names[name] = true
end

local function is_wanted(text)
  for i = 6, #ARGV do
    if not find(text, ARGV[i], 1, true) then
      return false
    end
  end
  if pattern and not find(text, pattern) then
    return false
  end
  if until_s and (tonumber(match(text, '^%["[^"\\]*",(%d+)')) or 0) > until_s then
    return false
  end
  if names then
    local key, team = match(text, '^%["[^"\\]*",[%d.]+,("[^"\\]*"),("?[^"\\]*"?),')
    return not key or names[key] or names[team]
  end
  return true
end

for _, entry in ipairs(found) do
  if is_wanted(entry[2][2]) then
    texts[#texts + 1] = entry[1] .. ' ' .. entry[2][2]
  end
end
return { #found, #found > 0 and found[#found][1] or '', table.concat(texts, '\30') }
