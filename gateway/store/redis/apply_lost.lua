-- What becomes of the leases of a worker that is retired, or silent.

if voided_at_once > 0 then
  local found = call('HRANDFIELD', LEASES, voided_at_once, 'WITHVALUES')
  for i = 1, #found, 2 do
    void_open(found[i + 1])
    change_lease(worker, found[i], false)
  end
end

local buried, dry = {}, {} -- leases that are lost now; workers that have none left

local function bury(whose, lease, text)
  local from = find(text, '\t', 1, true) + 1
  local head, age = head_of(text, from), now - tonumber(sub(text, 1, from - 2))
  for _, claim in ipairs(head[5]) do
    settle(claim, touch(claim), claim[7], claim[8], age)
  end
  add(head[2], head[3], head[4], 0, 1)
  add(hour_of(head[2], record_of(text, from)), head[3], head[4], 0, 1)
  change_lease(whose, lease, false)
  insert(buried, { whose, lease, text, record_of(text, from) })
end

-- Of the time since the newest batch of any worker, what is no silence (unheard_us of gateway/store/rules/batch.py), and
-- the workers whose times are moved by it.
local unheard, alive = 0, {}

if voided_at_once == 0 then
  local newest = call('ZRANGE', ALIVE, -1, -1, 'WITHSCORES')[2]
  if newest then
    local gap = now - newest
    unheard = gap - min(max(gap, 0), max_gap_us)
  end
  if unheard ~= 0 then
    alive = call('ZRANGE', ALIVE, 0, -1, 'WITHSCORES')
  end
  local before = format('(%.0f', now - silent_us - unheard)
  for _, whose in ipairs(call('ZRANGEBYSCORE', ALIVE, '-inf', before, 'LIMIT', 0, reaped_at_once)) do
    local room = reaped_at_once - #buried
    if whose ~= worker and room > 0 then
      local found = call('HRANDFIELD', base .. 'leases:' .. whose, room, 'WITHVALUES')
      for i = 1, #found, 2 do
        bury(whose, found[i], found[i + 1])
      end
      if #found < 2 * room then
        dry[#dry + 1] = whose
      end
    end
  end
end
