-- The part of retention of this batch. Rules and names: gateway/store/rules/retention.py, `next_look` and `is_idle`.
--
-- Redis deletes nothing by itself (no EXPIRE but on posts): its server's clock can be wrong as well, and of a full memory
-- it evicts keys with a lifetime first.

local HOUR_S, STEP_H = 3600, 24

-- The last look, and where in the hash of rate and parallel windows it ended.
local wall_h = floor(now_s / HOUR_S)
local last_wall_h, clock_h, cursor = match(call('GET', RETENTION) or '', '^(%d+) (%d+) (%d+)$')
local is_look_due = not last_wall_h or last_wall_h + 0 ~= wall_h
if not last_wall_h then
  local first = call('ZRANGEBYSCORE', DAYS, '-inf', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  clock_h, cursor = min(wall_h, first[2] and floor(first[2] / HOUR_S) or wall_h), '0'
elseif is_look_due then
  clock_h = min(wall_h, clock_h + STEP_H)
end
local clock_s = clock_h * HOUR_S
local old_days = call('ZRANGEBYSCORE', DAYS, '-inf', format('%d', clock_s), 'LIMIT', '0', '2')

-- Other keys by when they are deleted: of silent workers, of claims, and of the bonds of a key.
local AGES, BONDS_AT_ONCE = BASE .. 'ages', 100
local passed, old_keys, old_bonds = {}, {}, {} -- members of `ages`; keys; sets of bonds with ids by turns
for _, name in ipairs(call('ZRANGEBYSCORE', AGES, '-inf', format('%d', clock_s), 'LIMIT', '0', '2')) do
  local kind, id = match(name, '^(%l+):(.*)$')
  local is_whole = true
  if kind == 'bonds' then
    local ids = call('ZRANGEBYSCORE', BASE .. name, '-inf', format('%d', clock_s), 'LIMIT', '0', BONDS_AT_ONCE)
    for _, bond in ipairs(ids) do
      insert(old_bonds, { BASE .. name, bond })
    end
    is_whole = #ids < BONDS_AT_ONCE
  elseif kind == 'claim' then
    if tonumber(match(call('GET', BASE .. name) or '', '^%d+') or 0) <= clock_s * 1000000 then
      insert(old_keys, BASE .. name)
    end
  elseif id ~= worker and not call('ZSCORE', ALIVE, id) then
    insert(old_keys, BASE .. name)
    insert(old_keys, BASE .. 'lost:' .. id)
  end
  if is_whole then
    insert(passed, name)
  end
end

local idle = {}
if is_look_due then
  local IDLE_PERIODS, LOOKED_AT_ONCE = 100, 1000 -- of windows of one look, more or less
  local PER_S = { second = 1, minute = 60, hour = 3600 }

  local function is_idle(id, text)
    local used, reserved, at = match(text, '^(%d+) (%d+) (%d+)$')
    local age_s = at and clock_s - at / 1000000 or 0
    if age_s <= SUMS_S then
      return false
    end
    if used == '0' and reserved == '0' then
      return true
    end
    local per = match(id, '|[^|]*|([^|]*)|[^|]*|[^|]*$')
    local period_s = PER_S[per] or tonumber(per) or 0
    return period_s > 0 and age_s > IDLE_PERIODS * period_s
  end

  local is_in_batch = {}
  for _, window in ipairs(states) do
    is_in_batch[window.id] = true
  end
  for _, window in ipairs(others) do
    is_in_batch[window.id] = true
  end
  local found = call('HSCAN', WINDOWS, cursor, 'COUNT', LOOKED_AT_ONCE)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local id = found[2][i]
    if not is_in_batch[id] and is_idle(id, found[2][i + 1]) then
      insert(idle, id)
    end
  end
end
