-- Keeps a worker's post under a name, and reads those of the others.
--
-- KEYS   1: hash: holder -> "until_us text"
-- ARGV   1: holder, 2: text, 3: for how many microseconds it is kept, 4: offset_us
--
-- Returns holders and texts by turns, without the holder's own.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2] + ARGV[4]
call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now + ARGV[3], ARGV[2]))
if call('PTTL', KEYS[1]) < math.ceil(ARGV[3] / 1000) then -- what others keep for longer stays
  call('PEXPIRE', KEYS[1], math.ceil(ARGV[3] / 1000))
end
local found, known = {}, call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local until_us, text = string.match(known[i + 1], '^(%d+) (.*)$')
  if until_us + 0 <= now then
    call('HDEL', KEYS[1], known[i])
  elseif known[i] ~= ARGV[1] then
    found[#found + 1] = known[i]
    found[#found + 1] = text
  end
end
return found
