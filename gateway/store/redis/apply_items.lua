-- What becomes of each item. Nothing is written yet, only noted.

local touched = {} -- windows, by id
local leases_of = {} -- changes of leases: by worker, then by lease
local records, dropped = {}, {} -- texts to add; ids to delete
local unburied = {} -- lost leases that are settled now
local sums = {} -- by day or hour, then by group: what to add

local function change_lease(whose, lease, text)
  local changed = leases_of[whose]
  if not changed then
    changed = {}
    leases_of[whose] = changed
  end
  if not text and changed[lease] then
    text = '' -- begun and ended by this batch
  end
  changed[lease] = text
end

-- The hour of a call, whose record begins with its id and its time: ["req_1",1795182301.25,...
local function hour_of(day, record)
  local seconds = match(record, '^%["[^"]*",(%d+)')
  return day .. format('T%02d', floor((seconds or 0) % 86400 / 3600))
end

-- Adds `sign` times nine numbers, which stand in `from` behind that place, to the sums of a day or hour and a group.
local function add(day, group, from, place, sign)
  local groups = sums[day]
  if not groups then
    groups = {}
    sums[day] = groups
  end
  local numbers = groups[group]
  if not numbers then
    numbers = { 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    groups[group] = numbers
  end
  for i = 1, 9 do
    numbers[i] = numbers[i] + sign * from[place + i]
  end
end

local measures = {} -- by day or hour, then by field, then by counter: what to add

local function measure(period, of_call)
  local by_field = measures[period]
  if not by_field then
    by_field = {}
    measures[period] = by_field
  end
  for i = 1, #of_call, 2 do
    local field, counter = fields[of_call[i]], of_call[i + 1]
    local counters = by_field[field]
    if not counters then
      counters = {}
      by_field[field] = counters
    end
    counters[counter] = (counters[counter] or 0) + 1
  end
end

-- Sums by user and tag have a bounded number of groups, so that clients cannot fill the store: `ATTRIBUTED_OF_KEY` and
-- `ATTRIBUTED_A_DAY` of gateway/store/__init__.py. What is beyond counts as `other`.
local OF_KEY, A_DAY = 1000, 20000
local admitted = {} -- by day, then by field: the field in which it counts
local group_counts = {} -- by day, then by key: groups, where new ones came

local function admit(day, field)
  local known = admitted[day]
  if not known then
    known = {}
    admitted[day] = known
    group_counts[day] = {}
  end
  if not known[field] then
    known[field] = field
    local at = base .. 'sums:tags-' .. day
    if not call('HGET', at, field) then
      local key, counts = match(field, '^[^\31]*'), group_counts[day]
      local count = counts[key] or tonumber(call('HGET', base .. 'sums:tagcounts-' .. day, key) or 0)
      if count >= OF_KEY or call('HLEN', at) >= A_DAY then
        known[field] = match(field, '^.*\31') .. 'other'
      else
        counts[key] = count + 1
      end
    end
  end
  return known[field]
end

local function touch(kind)
  local window = window_of(kind)
  touched[kind[1]] = window
  return window
end

-- An open lease is `drawn_us TAB entry`. Gives back all that it holds.
local function void_open(text)
  local from = find(text, '\t', 1, true) + 1
  local age = now - tonumber(sub(text, 1, from - 2))
  for _, claim in ipairs(head_of(text, from)[5]) do
    settle(claim, touch(claim), claim[7], 0, age)
  end
end

local drawn_now = format('%.0f\t', now)

-- Draws on all windows of an item, from that place on. 'r': one has no room, and none is drawn on.
local function draw_all(item, first, is_forced)
  if not is_forced then
    for j = first, #item, 2 do
      local kind, window = kinds[item[j]], state_of[item[j]]
      if window.used + window.reserved + item[j + 1] > kind[4] and kind[6] == 1 then
        for k = first, #item, 2 do
          local other = state_of[item[k]]
          insert(refusals, format('%.0f %.0f %.0f', other.used, other.reserved, other.at))
        end
        return 'r'
      end
    end
  end
  for j = first, #item, 2 do
    local kind, window = kinds[item[j]], state_of[item[j]]
    draw(kind, window, item[j + 1])
    touched[kind[1]] = window
  end
  return 'g'
end

local function open(item, text)
  local lease, first, prefix = item[2], 3, drawn_now
  if lost[lease] then
    return 'g'
  end
  if leases[lease] then -- it may take further claims, behind those that it holds
    local from = find(leases[lease], '\t', 1, true) + 1
    first = 3 + 2 * #head_of(leases[lease], from)[5]
    if first > #item then
      return 'g'
    end
    prefix = sub(leases[lease], 1, from - 1)
  end
  if draw_all(item, first, item[1] == 'f') == 'r' then
    return 'r'
  end
  text = prefix .. text
  leases[lease] = text
  change_lease(worker, lease, text)
  return 'g'
end

-- What was written of a lost lease is removed, but for its windows.
local function take_back(lease, text, id, head, from)
  add(head[2], head[3], head[4], 0, -1)
  add(hour_of(head[2], record_of(text, from)), head[3], head[4], 0, -1)
  insert(dropped, id)
  insert(unburied, lease)
  lost[lease] = false
end

-- A lost lease is `id of its record TAB drawn_us TAB entry`. What it was charged becomes what `item` says, or nothing.
local function end_lost(lease, item)
  local id, drawn, from = match(lost[lease], '^(%S+)\t(%d+)\t()')
  local head, actual = head_of(lost[lease], from), {}
  for j = 15, #item, 3 do
    actual[kinds[item[j]][1]] = item[j + 2]
  end
  for _, claim in ipairs(head[5]) do
    correct(claim, touch(claim), claim[8], actual[claim[1]] or 0, now - drawn)
  end
  take_back(lease, lost[lease], id, head, from)
end

-- The worker of a lost lease is alive: the lease is open again, as before it was lost.
local function reopen_lost(lease, text)
  local id, drawn, from = match(text, '^(%S+)\t(%d+)\t()')
  local head = head_of(text, from)
  for _, claim in ipairs(head[5]) do
    reopen(claim, touch(claim), claim[7], claim[8], now - drawn)
  end
  take_back(lease, text, id, head, from)
  leases[lease] = drawn .. '\t' .. sub(text, from)
  change_lease(worker, lease, leases[lease])
end

local function close(item, record, of_call, named)
  local lease = item[2]
  local text = leases[lease]
  if text then
    local age = now - match(text, '^%d+')
    for j = 15, #item, 3 do
      local kind, window = kinds[item[j]], state_of[item[j]]
      settle(kind, window, item[j + 1], item[j + 2], age)
      touched[kind[1]] = window
    end
    leases[lease] = false
    change_lease(worker, lease, false)
  elseif lost[lease] then
    end_lost(lease, item)
  else
    for j = 15, #item, 3 do
      local kind, window = kinds[item[j]], state_of[item[j]]
      charge(kind, window, item[j + 2], now - item[4])
      touched[kind[1]] = window
    end
  end
  local group = groups[item[5]]
  add(group[1], group[2], item, 5, 1)
  add(group[3], group[2], item, 5, 1)
  measure(group[1], of_call)
  measure(group[3], of_call)
  for _, field in ipairs(named) do
    add('tags-' .. group[1], admit(group[1], fields[field]), item, 5, 1)
  end
  records[#records + 1] = record
end

local deferred = {} -- leases and what is kept of them, by turns

-- A lease goes on without its worker: it moves to its heir with all that it holds.
local function defer(item, text)
  local lease, held = item[2], leases[item[2]]
  if held then
    change_lease(worker, lease, false)
  else
    if lost[lease] then
      end_lost(lease, {})
    end
    for j = 5, #item, 2 do
      local kind, window = kinds[item[j]], state_of[item[j]]
      draw(kind, window, item[j + 1])
      touched[kind[1]] = window
    end
    held = drawn_now .. match(text, '^(.*)\t')
  end
  leases[lease] = false
  change_lease(item[4], lease, held)
  insert(deferred, lease)
  insert(deferred, text)
end

local function void(lease)
  if leases[lease] then
    void_open(leases[lease])
    leases[lease] = false
    change_lease(worker, lease, false)
  elseif lost[lease] then
    end_lost(lease, {})
  end
end

for i = 1, #reopened, 2 do
  reopen_lost(reopened[i], reopened[i + 1])
end
for i = 1, #items do
  local item = items[i]
  local kind = item[1]
  if kind == 'o' or kind == 'f' then
    verdicts[i] = open(item, ARGV[i + 2])
  elseif kind == 'r' then
    verdicts[i] = draw_all(item, 3, false)
  else
    verdicts[i] = '-'
    if item[3] > mark then
      mark = item[3]
      if kind == 'c' then
        close(item, ARGV[i + 2], measured[i], attributed[i])
      elseif kind == 'd' then
        defer(item, ARGV[i + 2])
      else
        void(item[2])
      end
    end
  end
end
