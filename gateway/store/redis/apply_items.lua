-- Decides the effect of each item. Nothing is written yet, only noted. The functions that gateway/store/rules/batch.py
-- has as well have the same names there.

local opened, ended = {}, {} -- leases of the worker and their texts, by turns; leases that are open no longer
local moved_leases = {} -- of other workers: [worker, lease, text or false]
local records, dropped = {}, {} -- texts to add; ids to delete
local no_longer_lost = {} -- lost leases that are settled now
local sums = {} -- by day or hour, then by group: what to add
local sums_of = {} -- by place of a group: what its closings add to its day and to its hour
local measures = {} -- by hour, then by place of a field, then by counter: what to add to the hour and to its day

-- The hour of a call, from its record, which begins with id and time: ["req_1",1795182301.25,...
local function hour_of(day, record)
  local seconds = match(record, '^%["[^"]*",(%d+)')
  return day .. format('T%02d', floor((seconds or 0) % 86400 / 3600))
end

-- Adds `sign` times nine numbers, which follow that place in `from`, to the sums of a day or hour and a group.
local function sum_up(day, group, from, place, sign)
  local by_group = sums[day]
  if not by_group then
    by_group = {}
    sums[day] = by_group
  end
  local numbers = by_group[group]
  if not numbers then
    numbers = { 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    by_group[group] = numbers
  end
  for i = 1, 9 do
    numbers[i] = numbers[i] + sign * from[place + i]
  end
end

-- Notes what one closing adds to the sums and counters of its group.
local function count(place, item, of_call)
  local numbers, hour = sums_of[place], groups[place][3]
  if not numbers then
    numbers = { 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    sums_of[place] = numbers
  end
  for i = 1, 9 do
    numbers[i] = numbers[i] + item[5 + i]
  end
  for i = 1, #of_call, 2 do
    local by_field, field, counter = measures[hour], of_call[i], of_call[i + 1]
    if not by_field then
      by_field = {}
      measures[hour] = by_field
    end
    local by_counter = by_field[field]
    if not by_counter then
      by_counter = {}
      by_field[field] = by_counter
    end
    by_counter[counter] = (by_counter[counter] or 0) + 1
  end
end

-- Sums by user and tag have a bounded number of groups, so that clients cannot fill the store: `ATTRIBUTED_OF_KEY` and
-- `ATTRIBUTED_A_DAY` of gateway/store/__init__.py. Further groups count as `other`.
local group_counts = {} -- by day, then by key: groups, where new ones came
local attribute

local function make_attribute()
  local OF_KEY, A_DAY = 1000, 20000
  local admitted = {} -- by day, then by field: the field in which it counts

  local function admit(day, field)
    local known = admitted[day]
    if not known then
      known = {}
      admitted[day] = known
      group_counts[day] = {}
    end
    if not known[field] then
      known[field] = field
      local at = BASE .. 'sums:tags-' .. day
      if not call('HGET', at, field) then
        local key, counts = match(field, '^[^\31]*'), group_counts[day]
        local known_count = counts[key] or tonumber(call('HGET', BASE .. 'sums:tagcounts-' .. day, key) or 0)
        if known_count >= OF_KEY or call('HLEN', at) >= A_DAY then
          known[field] = match(field, '^.*\31') .. 'other'
        else
          counts[key] = known_count + 1
        end
      end
    end
    return known[field]
  end

  return function(day, item, named)
    for i = 1, #named do
      sum_up('tags-' .. day, admit(day, fields[named[i]]), item, 5, 1)
    end
  end
end

local others = {} -- windows beside those of `hashes`
local lost_functions

-- Functions that few batches need: on lost leases, and on voided ones.
local function lost_leases()
  if lost_functions then
    return lost_functions
  end
  local by_id = {}
  for place = 1, #states do
    by_id[states[place].id] = states[place]
  end

  -- A claim of an entry: its shape and its window.
  local function touch(claim)
    local id, starts, shape = claim[1], claim[2], { claim[4], claim[5], claim[6] }
    local window = by_id[id]
    if not window then
      local text = call('HGET', hash_of(starts), id)
      window = read_window(id, starts, shape, text)
      by_id[id], is_known[starts] = window, is_known[starts] or text
      insert(others, window)
    end
    window.is_touched = true
    return shape, window
  end

  -- An open lease is `drawn_us TAB entry`. Gives back all that it holds.
  local function void_open(text)
    local from = find(text, '\t', 1, true) + 1
    local age = now - tonumber(sub(text, 1, from - 2))
    for _, claim in ipairs(head_of(text, from)[5]) do
      local shape, window = touch(claim)
      settle(shape, window, claim[7], 0, age)
    end
  end

  -- Removes the record and the sums of a lost lease, not its windows.
  local function take_back(lease, text, id, head, from)
    sum_up(head[2], head[3], head[4], 0, -1)
    sum_up(hour_of(head[2], record_of(text, from)), head[3], head[4], 0, -1)
    insert(dropped, id)
    insert(no_longer_lost, lease)
    lost[lease] = false
  end

  -- A lost lease is `id of its record TAB drawn_us TAB entry`. Its charges are replaced by those of `item`, by window in
  -- the order of its claims, or by 0.
  local function end_lost(lease, item)
    local id, drawn, from = match(lost[lease], '^(%S+)\t(%d+)\t()')
    local head, actual = head_of(lost[lease], from), {}
    for j = 15, #item, 3 do
      local id = states[item[j]].id
      actual[id] = actual[id] or {}
      insert(actual[id], item[j + 2])
    end
    for _, claim in ipairs(head[5]) do
      local shape, window = touch(claim)
      local used = actual[claim[1]]
      correct(shape, window, claim[8], used and table.remove(used, 1) or 0, now - drawn)
    end
    take_back(lease, lost[lease], id, head, from)
  end

  -- The worker of a lost lease is alive: the lease is open again, as before it was lost.
  local function reopen_lost(lease, text)
    local id, drawn, from = match(text, '^(%S+)\t(%d+)\t()')
    local head = head_of(text, from)
    for _, claim in ipairs(head[5]) do
      local shape, window = touch(claim)
      reopen(shape, window, claim[7], claim[8], now - drawn)
    end
    take_back(lease, text, id, head, from)
    leases[lease] = drawn .. '\t' .. sub(text, from)
    insert(opened, lease)
    insert(opened, leases[lease])
  end

  -- The lease of a silent worker is lost: charged at its estimate. Returns its record.
  local function lose(text)
    local from = find(text, '\t', 1, true) + 1
    local head, age = head_of(text, from), now - tonumber(sub(text, 1, from - 2))
    local record = record_of(text, from)
    for _, claim in ipairs(head[5]) do
      local shape, window = touch(claim)
      settle(shape, window, claim[7], claim[8], age)
    end
    sum_up(head[2], head[3], head[4], 0, 1)
    sum_up(hour_of(head[2], record), head[3], head[4], 0, 1)
    return record
  end

  lost_functions = { void_open = void_open, end_lost = end_lost, reopen_lost = reopen_lost, lose = lose }
  return lost_functions
end

-- Draws on all windows of an item, from that place on. 'r': one has no room, and none is drawn on.
local function draw_all(item, first, is_forced)
  if not is_forced then
    for j = first, #item, 2 do
      local place = item[j]
      local shape, window = shape_of[place], states[place]
      if window.used + window.reserved + item[j + 1] > shape[1] and shape[3] == 1 then
        for k = first, #item, 2 do
          local other = states[item[k]]
          insert(refusals, format(other.form, other.used, other.reserved, other.at))
        end
        return 'r'
      end
    end
  end
  for j = first, #item, 2 do
    local window = states[item[j]]
    draw(window, item[j + 1])
    window.is_touched = true
  end
  return 'g'
end

local function open(item, text)
  local lease, first, prefix = item[2], 3, nil
  if lost[lease] then
    return 'g'
  end
  local held = leases[lease]
  if held then -- it may take further claims, behind those that it holds
    local from = find(held, '\t', 1, true) + 1
    first = 3 + 2 * #head_of(held, from)[5]
    if first > #item then
      return 'g'
    end
    prefix = sub(held, 1, from - 1)
  end
  if draw_all(item, first, item[1] == 'f') == 'r' then
    return 'r'
  end
  text = (prefix or now_text .. '\t') .. text
  leases[lease] = text
  opened[#opened + 1] = lease
  opened[#opened + 1] = text
  return 'g'
end

local function end_lease(lease)
  leases[lease] = false
  ended[#ended + 1] = lease
end

local function close(item, record, place)
  local lease = item[2]
  local text = leases[lease]
  if text then
    local age = now - match(text, '^%d+')
    for j = 15, #item, 3 do
      local at = item[j]
      local window = states[at]
      settle(shape_of[at], window, item[j + 1], item[j + 2], age)
      window.is_touched = true
    end
    end_lease(lease)
  elseif lost[lease] then
    lost_leases().end_lost(lease, item)
  else
    for j = 15, #item, 3 do
      local at = item[j]
      local window = states[at]
      charge(shape_of[at], window, item[j + 2], now - item[4])
      window.is_touched = true
    end
  end
  count(item[5], item, measured[place])
  if #attributed[place] > 0 then
    attribute = attribute or make_attribute()
    attribute(groups[item[5]][1], item, attributed[place])
  end
  records[#records + 1] = record
end

local deferred = {} -- leases and what is kept of them, by turns

-- A lease goes on without its worker: it moves to its heir with all that it holds.
local function defer(item, text)
  local lease, held = item[2], leases[item[2]]
  if held then
    end_lease(lease)
  else
    if lost[lease] then
      lost_leases().end_lost(lease, {})
    end
    draw_all(item, 5, true)
    held = now_text .. '\t' .. match(text, '^(.*)\t')
  end
  leases[lease] = false
  insert(moved_leases, { item[4], lease, held })
  insert(deferred, lease)
  insert(deferred, text)
end

local function void(lease)
  if leases[lease] then
    lost_leases().void_open(leases[lease])
    end_lease(lease)
  elseif lost[lease] then
    lost_leases().end_lost(lease, {})
  end
end

for i = 1, #reopened, 2 do
  lost_leases().reopen_lost(reopened[i], reopened[i + 1])
end
for i = 1, #items do
  local item = items[i]
  local kind = item[1]
  if kind == 'o' or kind == 'f' then
    verdicts[i] = open(item, ARGV[i + 1])
  elseif kind == 'r' then
    verdicts[i] = draw_all(item, 3, false)
  else
    verdicts[i] = '-'
    if item[3] > mark then
      mark = item[3]
      if kind == 'c' then
        close(item, ARGV[i + 1], i)
      elseif kind == 'd' then
        defer(item, ARGV[i + 1])
      else
        void(item[2])
      end
    end
  end
end
