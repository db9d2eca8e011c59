-- Keeps a worker's post under a name, and reads those of the others.
--
-- KEYS   1: hash: holder -> "until_us text"; 2: hash: holder -> since when, in microseconds
-- ARGV   1: holder, 2: text, 3: for how many microseconds it is kept, 4: offset_us
--
-- Returns holders and texts by turns, without the holder's own.

local FAR_AHEAD_US = 60000000 -- FAR_BEHIND_US of gateway/store/__init__.py

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2] + ARGV[4]
call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now + ARGV[3], ARGV[2]))
call('HSET', KEYS[2], ARGV[1], string.format('%.0f', now))
for i = 1, 2 do
  if call('PTTL', KEYS[i]) < math.ceil(ARGV[3] / 1000) then -- what others keep for longer stays
    call('PEXPIRE', KEYS[i], math.ceil(ARGV[3] / 1000))
  end
end
local found, known = {}, call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local until_us, text = string.match(known[i + 1], '^(%d+) (.*)$')
  local left = until_us - now
  local since = left > ARGV[3] + FAR_AHEAD_US and call('HGET', KEYS[2], known[i]) or 0
  if left <= 0 or since - now > FAR_AHEAD_US then -- past, or made by a clock that was ahead
    call('HDEL', KEYS[1], known[i])
    call('HDEL', KEYS[2], known[i])
  elseif known[i] ~= ARGV[1] then
    found[#found + 1] = known[i]
    found[#found + 1] = text
  end
end
return found
