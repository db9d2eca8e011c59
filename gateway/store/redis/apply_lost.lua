-- Voids the leases of a worker that is retired, and closes those of silent workers as lost.

if voided_at_once > 0 then
  local found = call('HRANDFIELD', LEASES, voided_at_once, 'WITHVALUES')
  for i = 1, #found, 2 do
    lost_leases().void_open(found[i + 1])
    ended[#ended + 1] = found[i]
  end
end

local newly_lost, emptied = {}, {} -- leases that are lost now; workers that have none left

-- Of the time since the newest batch of any worker, what is no silence (unheard_us of gateway/store/rules/batch.py), and
-- the workers whose times are moved by it.
local unheard, alive = 0, {}

if voided_at_once == 0 then
  local newest = call('ZRANGE', ALIVE, '-1', '-1', 'WITHSCORES')[2]
  if newest then
    local gap = now - newest
    unheard = gap - min(max(gap, 0), MAX_GAP_US)
  end
  if unheard ~= 0 then
    alive = call('ZRANGE', ALIVE, '0', '-1', 'WITHSCORES')
  end
  local before = format('(%d', now - SILENT_US - unheard)
  local silent = call('ZRANGEBYSCORE', ALIVE, '-inf', before, 'LIMIT', '0', REAPED_AT_ONCE)
  for _, owner in ipairs(silent) do
    local room = REAPED_AT_ONCE - #newly_lost
    if owner ~= worker and room > 0 then
      local found = call('HRANDFIELD', BASE .. 'leases:' .. owner, room, 'WITHVALUES')
      for i = 1, #found, 2 do
        insert(newly_lost, { owner, found[i], found[i + 1], lost_leases().lose(found[i + 1]) })
        insert(moved_leases, { owner, found[i], false })
      end
      if #found < 2 * room then
        emptied[#emptied + 1] = owner
      end
    end
  end
end
