-- Claims names for a worker, unless another worker holds them. No claim has a lifetime (apply_retention.lua).
--
-- KEYS   one for each name, with the store's {tag}
-- ARGV   1: holder, 2: offset_us, 3: how the names of keys begin,
--        4...: for each name, for how many microseconds from now; 0 releases it
--
-- Returns for each name for how many more microseconds another worker holds it; 0: the holder has it now.

local FAR_AHEAD_US, KEPT_S = 60000000, 2592000 -- FAR_BEHIND_US, CLAIMS_KEPT_S of gateway/store/__init__.py

local call, match = redis.call, string.match
local time, ages = call('TIME'), ARGV[3] .. 'ages'
local now = time[1] * 1000000 + time[2] + ARGV[2]
local held = {}
for i = 1, #KEYS do
  local text, span = call('GET', KEYS[i]) or '', ARGV[i + 3] + 0
  local until_us, holder, since = match(text, '^(%d+) (.*) (%d+)$')
  if not since then -- of an older gateway
    until_us, holder = match(text, '^(%d+) (.*)$')
  end
  local left = holder and holder ~= ARGV[1] and until_us - now or 0
  -- Made by a clock that was ahead. It is not shorter for those who only look: a session that is over stays so.
  local is_void = since and span > 0 and since - now > FAR_AHEAD_US
  if left <= 0 or is_void then
    left = 0
    local name = string.sub(KEYS[i], #ARGV[3] + 1)
    if span > 0 then
      call('SET', KEYS[i], string.format('%.0f %s %.0f', now + span, ARGV[1], now))
      call('ZADD', ages, math.ceil((now + span) / 1000000) + KEPT_S, name)
    elseif holder == ARGV[1] then
      call('DEL', KEYS[i])
      call('ZREM', ages, name)
    end
  end
  held[i] = left
end
return held
