-- A list of texts from each of some keys, each list in one text: a reply of many parts costs the reading worker ten times
-- as much.
--
-- KEYS: the keys. ARGV: a command whose reply is a list, without its key, which is its first argument.
-- Returns for each key its texts with U+001E between, which no name holds.

local command, texts = { unpack(ARGV) }, {}
table.insert(command, 2, '')
for place, key in ipairs(KEYS) do
  command[2] = key
  texts[place] = table.concat(redis.call(unpack(command)), '\30')
end
return texts
