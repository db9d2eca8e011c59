-- Writes the noted changes, after it has read the values that they change.
--
-- All or nothing holds for a server that runs. One that was killed while it wrote its append-only file leaves a part of a
-- transaction at the end, which Redis (all versions to date) and Valkey (until 2026) cut in its middle instead of before
-- it: at the restart *after* the next, that piece is applied too, ahead of all that was written meanwhile. The first
-- thing that is written meanwhile overwrites it (reassert.lua), as do batches that are sent again after a lost answer:
-- values are written whole, never added to; a draw that came to nothing is drawn and given back (LedgerClient); and of
-- two records with the same id the newer one counts (reports.py). reassert.lua has to know all that is written here.

for place, numbers in pairs(sums_of) do
  local day, group, hour = unpack(groups[place])
  sum_up(day, group, numbers, 0, 1)
  sum_up(hour, group, numbers, 0, 1)
end

local function add_measures(into, by_field)
  for field, by_counter in pairs(by_field) do
    local numbers = into[field] or {}
    into[field] = numbers
    for counter, number in pairs(by_counter) do
      numbers[counter] = (numbers[counter] or 0) + number
    end
  end
  return into
end

-- A day has the counters of its hours: mostly those of one, whose table is then that of the day, too.
local measures_of = {} -- by day or hour
for hour, by_field in pairs(measures) do
  local day = sub(hour, 1, 10)
  measures_of[hour] = by_field
  measures_of[day] = measures_of[day] and add_measures(add_measures({}, measures_of[day]), by_field) or by_field
end

local SUMS = '%d %d %d %d %d %d %d %d %d'
local totals = {} -- by day: fields to write, fields to delete, and whether the day may be new
local fresh = {} -- by month: what to add to its index of groups (groups.lua)
local is_old = {}
for _, day in ipairs(old_days) do
  is_old[day] = true
end
for day, by_group in pairs(sums) do
  local names, month = {}, match(day, '^(%d+%-%d+)%-%d+$')
  for name in pairs(by_group) do
    names[#names + 1] = name
  end
  if month then
    names[#names + 1] = ABOUT
    fresh[month] = fresh[month] or {}
  end
  local texts = fetch(BASE .. 'sums:' .. day, names)
  -- The stamp of a day has a mark if all its groups are in the index. Every gateway that adds its groups keeps the mark.
  local about = month and table.remove(names) and texts[#names + 1]
  local index = ''
  if about then
    index = match(about, '; index[^;]*') or ''
  elseif month and call('HLEN', BASE .. 'sums:' .. day) == 0 then
    index = '; indexed'
  end
  -- No two stamps are the same.
  local stamp = format('%s%s; last written at %s by %s %d', ABOUT_SUMS, index, now_text, worker, seq)
  local written, gone, is_new = { ABOUT, stamp }, {}, true
  for i = 1, #names do
    local added, text = by_group[names[i]], texts[i]
    if text then
      local a, b, c, d, e, f, g, h, j = match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
      added = {
        max(0, added[1] + a), max(0, added[2] + b), max(0, added[3] + c), max(0, added[4] + d), max(0, added[5] + e),
        max(0, added[6] + f), max(0, added[7] + g), max(0, added[8] + h), max(0, added[9] + j),
      }
      is_new = false
    end
    if added[1] > 0 then
      written[#written + 1] = names[i]
      written[#written + 1] = format(SUMS, unpack(added))
      if month and (not text or is_old[day]) then
        insert(fresh[month], '0')
        insert(fresh[month], names[i])
      end
    elseif text then
      insert(gone, names[i])
    end
  end
  totals[day] = { written, gone, is_new }
end

-- A text "counter:number counter:number ..." with numbers added to many of its counters.
local function add_many(text, numbers)
  local parts, seen = {}, {}
  for counter, number in gmatch(text, '(%d+):(%d+)') do
    local added = numbers[counter + 0]
    if added then
      seen[counter + 0] = true
      number = format('%d', number + added)
    end
    parts[#parts + 1] = counter .. ':' .. number
  end
  for counter, number in pairs(numbers) do
    if not seen[counter] then
      parts[#parts + 1] = format('%d:%d', counter, number)
    end
  end
  return table.concat(parts, ' ')
end

-- The same with few, which are changed in their places: a text has a hundred counters, and a lone call adds to two.
local function add_few(text, numbers)
  text = ' ' .. text
  for counter, number in pairs(numbers) do
    local name = format(' %d:', counter)
    local _, till = find(text, name, 1, true)
    if till then
      local known = match(text, '^%d+', till + 1)
      text = sub(text, 1, till) .. format('%d', known + number) .. sub(text, till + #known + 1)
    else
      text = text .. name .. format('%d', number)
    end
  end
  return sub(text, 2)
end

local FEW = 12
local function add_counters(text, numbers)
  local count_of = 0
  for _ in pairs(numbers) do
    count_of = count_of + 1
  end
  return (text and count_of <= FEW and add_few or add_many)(text or '', numbers)
end

local counted = {} -- by day or hour: fields and their texts
for period, by_field in pairs(measures_of) do
  local names, numbers_of, written = {}, {}, {}
  for place, numbers in pairs(by_field) do
    names[#names + 1] = fields[place]
    numbers_of[#names] = numbers
  end
  local texts = fetch(BASE .. 'sums:latency-' .. period, names)
  for i = 1, #names do
    local text = texts[i]
    written.is_new = written.is_new or not text
    written[2 * i - 1] = names[i]
    written[2 * i] = add_counters(text, numbers_of[i])
  end
  counted[period] = written
end
local length = 0
if #records + #newly_lost > 0 then
  length = call('XLEN', RECORDS) -- whatever keeps us from a key shows itself before anything is written
end
-- A node whose slot is being moved away refuses each key that it does not have. It never has this one.
call('GET', BASE .. 'absent')

local function write(command, key, arguments)
  for first = 1, #arguments, AT_ONCE do
    call(command, key, unpack(arguments, first, min(first + AT_ONCE - 1, #arguments)))
  end
end

local function keep_for_now(owner)
  call('ZADD', AGES, now_s + KEPT_S, 'worker:' .. owner)
end

call('SET', WORKER, format('%d %d', seq, mark))
if not progress then
  keep_for_now(worker)
  call('SET', SCHEMA, '1', 'NX')
end

if is_look_due then
  call('SET', RETENTION, format('%d %d %s', wall_h, clock_h, cursor))
end
for _, day in ipairs(old_days) do
  call('UNLINK', BASE .. 'sums:' .. day, BASE .. 'windows:' .. day)
  call('ZREM', DAYS, day)
  is_known[day] = nil
  if totals[day] then
    totals[day][3] = true
  end
end

for _, key in ipairs(old_keys) do
  call('UNLINK', key)
end
for _, bond in ipairs(old_bonds) do
  call('UNLINK', BASE .. 'bond:' .. bond[2])
  call('ZREM', bond[1], bond[2])
end
write('ZREM', AGES, passed)

write('HDEL', WINDOWS, idle)

-- Notes when retention deletes a day, week or month.
local function remember(starts)
  call('ZADD', DAYS, forgotten_at(match(starts, '^tag.*%-(%d+%-%d+%-%d+)$') or starts), starts)
end

local changed = {} -- windows and their texts, by hash
local function note(window)
  if not window.is_touched then
    return
  end
  local state = changed[window.starts]
  if not state then
    state = is_known[window.starts] and {} or { ABOUT, ABOUT_WINDOWS }
    changed[window.starts] = state
  end
  window.text = format(window.form, window.used, window.reserved, window.at)
  window.is_touched = false
  state[#state + 1] = window.id
  state[#state + 1] = window.text
end
for place = 1, #states do
  note(states[place])
end
for i = 1, #others do
  note(others[i])
end
for starts, state in pairs(changed) do
  write('HSET', hash_of(starts), state)
  if starts ~= '' and not is_known[starts] then
    remember(starts)
  end
end

-- Deleting a field that is not there is not in the append-only file, so a lease that this batch has begun and ended is
-- written first.
if #ended > 0 then
  local gone = {}
  for i = 1, #opened, 2 do
    if not leases[opened[i]] then
      opened[i + 1] = ''
    end
  end
  for i = 1, #ended do
    if not leases[ended[i]] then
      gone[#gone + 1] = ended[i]
    end
  end
  write('HSET', LEASES, opened)
  write('HDEL', LEASES, gone)
else
  write('HSET', LEASES, opened)
end
for _, moved in ipairs(moved_leases) do
  local owner, lease, text = unpack(moved)
  if text then
    call('HSET', BASE .. 'leases:' .. owner, lease, text)
  else
    call('HDEL', BASE .. 'leases:' .. owner, lease)
  end
end

write('HSET', BASE .. 'deferred', deferred)

for i = 1, #records do
  call('XADD', RECORDS, '*', 'r', records[i])
end
for _, each in ipairs(newly_lost) do
  local owner, lease, text, record = unpack(each)
  local id = call('XADD', RECORDS, '*', 'r', record)
  call('HSET', BASE .. 'lost:' .. owner, lease, id .. '\t' .. text)
  redis.pcall('PERSIST', BASE .. 'lost:' .. owner) -- which older gateways gave a lifetime; some users may not
end
write('HDEL', LOST, no_longer_lost)
-- Not with XADD, which the append-only file has with the exact length of that moment: carried out late, as above, it
-- would delete newer records.
if length + #records + #newly_lost > RECORDS_MAX + 0 then
  call('XTRIM', RECORDS, 'MAXLEN', '~', RECORDS_MAX)
end

-- First: a group of the sums that the index has not would be missing in reports, one that is in the index alone is not.
for month, groups_of in pairs(fresh) do
  if #groups_of > 0 then
    write('ZADD', BASE .. 'sums:groups-' .. month, groups_of)
    call('ZADD', DAYS, forgotten_at(month), 'groups-' .. month)
  end
end
for day, total in pairs(totals) do
  local key = BASE .. 'sums:' .. day
  write('HSET', key, total[1])
  write('HDEL', key, total[2])
  if total[3] then
    remember(day)
  end
end

for day, counts in pairs(group_counts) do
  for key, count_of_key in pairs(counts) do
    call('HSET', BASE .. 'sums:tagcounts-' .. day, key, format('%d', count_of_key))
    remember('tagcounts-' .. day)
  end
end

for period, written in pairs(counted) do
  write('HSET', BASE .. 'sums:latency-' .. period, written)
  if written.is_new then
    call('ZADD', DAYS, forgotten_at(period), 'latency-' .. period)
  end
end

if voided_at_once > 0 then
  local left = call('HLEN', LEASES)
  if left == 0 and is_forgotten == 1 then
    call('DEL', WORKER, LEASES, LOST)
    call('ZREM', ALIVE, worker)
    call('HDEL', BASE .. 'sent', worker)
    call('ZREM', AGES, 'worker:' .. worker)
  end
  return format('r %d', left)
end

local moved = {}
for i = 1, #alive, 2 do
  insert(moved, format('%d', alive[i + 1] + unheard))
  insert(moved, alive[i])
end
write('ZADD', ALIVE, moved)
call('ZADD', ALIVE, now_text, worker)
write('ZREM', ALIVE, emptied)
for _, owner in ipairs(emptied) do
  keep_for_now(owner)
end
write('HDEL', BASE .. 'sent', emptied)
write('XDEL', RECORDS, dropped) -- last, because a deleted record cannot be written again (reassert.lua)

local window_texts = {}
if is_shown == 1 then
  for place = 1, #states do
    local window = states[place]
    window_texts[place] = window.text or format(window.form, window.used, window.reserved, window.at)
  end
end
return 'a ' .. now_text .. ' ' .. #newly_lost .. '\n' .. table.concat(verdicts) .. '\n'
  .. table.concat(window_texts, ' ') .. '\n' .. table.concat(refusals, ' ')
