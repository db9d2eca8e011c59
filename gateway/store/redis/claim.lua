-- Claims names for a worker, unless another worker holds them.
--
-- KEYS   one for each name, with the store's {tag}
-- ARGV   1: holder, 2: offset_us, 3...: for each name, for how many microseconds from now; 0 releases it
--
-- Returns for each name for how many more microseconds another worker holds it; 0: the holder has it now.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2] + ARGV[2]
local held = {}
for i = 1, #KEYS do
  local until_us, holder = string.match(call('GET', KEYS[i]) or '', '^(%d+) (.*)$')
  local left = holder and holder ~= ARGV[1] and until_us - now or 0
  if left <= 0 then
    left = 0
    local span = ARGV[i + 2] + 0
    if span > 0 then
      call('SET', KEYS[i], string.format('%.0f %s', now + span, ARGV[1]), 'PX', math.ceil(span / 1000))
    else
      call('DEL', KEYS[i])
    end
  end
  held[i] = left
end
return held
