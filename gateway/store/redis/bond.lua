-- Writes a bond (gateway/store/bonds.py), and deletes those of its key that are too old or too many.
--
-- Too old is what is so by the clock of retention as well, which no wrong moment moves far (apply_retention.lua).
--
-- KEYS   1: the bond: "until bond", in Unix seconds; 2: sorted set: ids of its key's bonds by the same time;
--        3: sorted set: what retention deletes, by when; 4: the last look of retention
-- ARGV   1: how the names of keys begin, 2: id, 3: key, 4: bond, 5: now in Unix seconds, 6: lifetime in seconds,
--        7: how many bonds of one key are kept, 8: the place of its tokens if they are added to those known, else 0

local call = redis.call
local known, bond, place = call('GET', KEYS[1]), ARGV[4], tonumber(ARGV[8])
if known then
  local before = cjson.decode(string.match(known, '^%d+ (.*)$'))
  if before[2] ~= ARGV[3] then
    return 0
  end
  if place > 0 then
    local after = cjson.decode(bond)
    after[place] = math.max(0, before[place] + after[place])
    bond = cjson.encode(after)
  end
end
local until_s = string.format('%.0f', ARGV[5] + ARGV[6])
call('SET', KEYS[1], until_s .. ' ' .. bond)
call('ZADD', KEYS[2], until_s, ARGV[2])
redis.pcall('PERSIST', KEYS[2]) -- which older gateways gave a lifetime; some users may not
call('ZADD', KEYS[3], 'GT', until_s, string.sub(KEYS[2], #ARGV[1] + 1))
local clock_s = (string.match(call('GET', KEYS[4]) or '', '^%d+ (%d+)') or 0) * 3600
local oldest = string.format('(%.0f', math.min(clock_s, ARGV[5]))
local gone = call('ZRANGEBYSCORE', KEYS[2], '-inf', oldest, 'LIMIT', 0, 100)
local excess = call('ZCARD', KEYS[2]) - #gone - ARGV[7]
if excess > 0 then
  for _, id in ipairs(call('ZRANGE', KEYS[2], #gone, #gone + math.min(excess, 100) - 1)) do
    gone[#gone + 1] = id
  end
end
for _, id in ipairs(gone) do
  call('DEL', ARGV[1] .. 'bond:' .. id)
  call('ZREM', KEYS[2], id)
end
return 1
