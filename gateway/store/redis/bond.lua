-- Writes a bond (gateway/store/bonds.py), and deletes those of its key that are too old or too many.
--
-- KEYS   1: the bond: "until bond", in Unix seconds; 2: sorted set: ids of its key's bonds by the same time
-- ARGV   1: how the names of bonds begin, 2: id, 3: key, 4: bond, 5: now in Unix seconds, 6: lifetime in seconds,
--        7: how many bonds of one key are kept

local call = redis.call
local known = call('GET', KEYS[1])
if known then
  local owner = cjson.decode(string.match(known, '^%d+ (.*)$'))[2]
  if owner ~= ARGV[3] then
    return 0
  end
end
local until_s = string.format('%.0f', ARGV[5] + ARGV[6])
call('SET', KEYS[1], until_s .. ' ' .. ARGV[4], 'EX', ARGV[6])
call('ZADD', KEYS[2], until_s, ARGV[2])
call('EXPIRE', KEYS[2], ARGV[6])
local gone = call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[5], 'LIMIT', 0, 100)
local excess = call('ZCARD', KEYS[2]) - #gone - ARGV[7]
if excess > 0 then
  for _, id in ipairs(call('ZRANGE', KEYS[2], #gone, #gone + math.min(excess, 100) - 1)) do
    gone[#gone + 1] = id
  end
end
for _, id in ipairs(gone) do
  call('DEL', ARGV[1] .. id)
  call('ZREM', KEYS[2], id)
end
return 1
