-- Writes down what was noted; first, what of it has to be read again.
--
-- All or nothing holds for a server that runs. One that died while it wrote its append-only file leaves a piece of a
-- transaction at the end, which Redis (all versions to date) and Valkey (until 2026) cut in its middle instead of before
-- it: at the restart *after* the next, that piece is applied too, ahead of all that was written meanwhile. So what is
-- told again after a lost answer has to overwrite all that the piece may hold: values are written whole, never added
-- to; a draw that came to nothing is drawn and given back (Bookkeeper); and of two records with the same id the newer
-- one counts (reports.py).

local totals = {} -- by day: what to write, and what is nothing now
local is_new = {} -- by day
for day, names_of in pairs(sums) do
  local names = {}
  for name in pairs(names_of) do
    names[#names + 1] = name
  end
  names[#names + 1] = ABOUT
  local stamp = format('%s; last written at %.0f by %s %.0f', ABOUT_SUMS, now, worker, seq) -- no two are the same
  local known, written, gone = fetch(base .. 'sums:' .. day, names), { ABOUT, stamp }, {}
  is_new[day] = not known[ABOUT]
  for i = 1, #names - 1 do
    local added, text = names_of[names[i]], known[names[i]]
    if text then
      local a, b, c, d, e, f, g, h, j = match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
      added = {
        max(0, added[1] + a), max(0, added[2] + b), max(0, added[3] + c), max(0, added[4] + d), max(0, added[5] + e),
        max(0, added[6] + f), max(0, added[7] + g), max(0, added[8] + h), max(0, added[9] + j),
      }
    end
    if added[1] > 0 then
      insert(written, names[i])
      insert(written, format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', unpack(added)))
    elseif text then
      insert(gone, names[i])
    end
  end
  totals[day] = { written, gone }
end
local counted = {} -- by day or hour: fields and their texts
for period, by_field in pairs(measures) do
  local names, written = {}, {}
  for name in pairs(by_field) do
    insert(names, name)
  end
  local known = fetch(base .. 'sums:latency-' .. period, names)
  for _, name in ipairs(names) do
    local counters, parts = by_field[name], {}
    for counter, number in gmatch(known[name] or '', '(%d+):(%d+)') do
      counters[counter + 0] = (counters[counter + 0] or 0) + number
    end
    for counter, number in pairs(counters) do
      insert(parts, format('%.0f:%.0f', counter, number))
    end
    insert(written, name)
    insert(written, table.concat(parts, ' '))
    written.is_new = written.is_new or not known[name]
  end
  counted[period] = written
end
if #records + #buried > 0 then
  call('XLEN', RECORDS) -- whatever keeps us from a key shows itself before anything is written
end

local function write(command, key, arguments)
  for first = 1, #arguments, AT_ONCE do
    call(command, key, unpack(arguments, first, min(first + AT_ONCE - 1, #arguments)))
  end
end

call('SET', WORKER, format('%.0f %.0f', seq, mark), 'EX', KEPT_S)
if not progress then
  call('SET', SCHEMA, '1', 'NX')
end

if is_look_due then
  call('SET', base .. 'retention', format('%.0f %.0f %s', wall_h, clock_h, cursor))
end
for _, day in ipairs(old_days) do
  call('UNLINK', base .. 'sums:' .. day, base .. 'windows:' .. day)
  call('ZREM', DAYS, day)
  is_about[day], is_new[day] = nil, true
end

write('HDEL', WINDOWS, idle)

-- Notes when retention deletes a day, week or month.
local function remember(starts)
  call('ZADD', DAYS, forgotten_at(match(starts, '^tag.*%-(%d+%-%d+%-%d+)$') or starts), starts)
end

local states = {} -- by hash
for id, window in pairs(touched) do
  local state = states[window.starts]
  if not state then
    state = {}
    states[window.starts] = state
  end
  window.text = format('%.0f %.0f %.0f', window.used, window.reserved, window.at)
  state[#state + 1] = id
  state[#state + 1] = window.text
end
for starts, state in pairs(states) do
  if not is_about[starts] then
    state[#state + 1] = ABOUT
    state[#state + 1] = ABOUT_WINDOWS
  end
  write('HSET', hash_of(starts), state)
  if starts ~= '' and not is_about[starts] then
    remember(starts)
  end
end

for whose, changed in pairs(leases_of) do
  local kept, gone = {}, {}
  for lease, text in pairs(changed) do
    if text then
      kept[#kept + 1] = lease
      kept[#kept + 1] = text
    end
    if not text or text == '' then
      gone[#gone + 1] = lease -- what is not there is not deleted in the append-only file either, so it is written first
    end
  end
  write('HSET', base .. 'leases:' .. whose, kept)
  write('HDEL', base .. 'leases:' .. whose, gone)
end

write('HSET', base .. 'deferred', deferred)

for i = 1, #records do
  call('XADD', RECORDS, '*', 'r', records[i])
end
for _, each in ipairs(buried) do
  local whose, lease, text, record = unpack(each)
  local id = call('XADD', RECORDS, '*', 'r', record)
  call('HSET', base .. 'lost:' .. whose, lease, id .. '\t' .. text)
  call('EXPIRE', base .. 'lost:' .. whose, KEPT_S)
end
write('XDEL', RECORDS, dropped)
write('HDEL', LOST, unburied)
if #records + #buried > 0 then
  call('XTRIM', RECORDS, 'MAXLEN', '~', records_max)
end

for day, total in pairs(totals) do
  local key = base .. 'sums:' .. day
  write('HSET', key, total[1])
  write('HDEL', key, total[2])
  if is_new[day] then
    remember(day)
  end
end

for day, counts in pairs(group_counts) do
  for key, count in pairs(counts) do
    call('HSET', base .. 'sums:tagcounts-' .. day, key, format('%.0f', count))
    remember('tagcounts-' .. day)
  end
end

for period, written in pairs(counted) do
  write('HSET', base .. 'sums:latency-' .. period, written)
  if written.is_new then
    call('ZADD', DAYS, forgotten_at(period), 'latency-' .. period)
  end
end

if voided_at_once > 0 then
  local left = call('HLEN', LEASES)
  if left == 0 and is_forgotten == 1 then
    call('DEL', WORKER, LEASES, LOST)
    call('ZREM', ALIVE, worker)
  end
  return format('r %.0f', left)
end

local moved = {}
for i = 1, #alive, 2 do
  insert(moved, format('%.0f', alive[i + 1] + unheard))
  insert(moved, alive[i])
end
write('ZADD', ALIVE, moved)
call('ZADD', ALIVE, format('%.0f', now), worker)
write('ZREM', ALIVE, dry)

local stand = {}
for i = 1, shown do
  local window = state_of[i]
  stand[i] = window.text or format('%.0f %.0f %.0f', window.used, window.reserved, window.at)
end
return format('a %.0f %.0f\n', now, #buried) .. table.concat(verdicts) .. '\n' .. table.concat(stand, ' ') .. '\n'
  .. table.concat(refusals, ' ')
