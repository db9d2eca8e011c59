-- Reads the state of the worker, of the windows and of the leases of this batch.

-- The values of these fields, in their order.
local function fetch(key, names)
  if #names == 1 then
    return { call('HGET', key, names[1]) }
  end
  if #names <= AT_ONCE then
    return call('HMGET', key, unpack(names))
  end
  local values = {}
  for first = 1, #names, AT_ONCE do
    for _, value in ipairs(call('HMGET', key, unpack(names, first, min(first + AT_ONCE - 1, #names)))) do
      values[#values + 1] = value
    end
  end
  return values
end

local function hash_of(starts)
  return starts == '' and WINDOWS or BASE .. 'windows:' .. starts
end

-- A window at present, leaked until now. `at` is a text where nothing leaks.
local function read_window(id, starts, shape, text)
  local window = {
    id = id, starts = starts, used = 0, reserved = 0, at = now_text, form = '%d %d %s', is_touched = false, text = false,
  }
  if text then
    local used, reserved, at = match(text, '^(%d+) (%d+) (%d+)$')
    window.used, window.reserved, window.at = used + 0, reserved + 0, at
  end
  if shape[2] > 0 then
    window.at, window.form = window.at + 0, '%d %d %d'
    leak(shape, window)
  end
  return window
end

local function head_of(entry, from)
  return decode(sub(entry, from, find(entry, '\t', from, true) - 1))
end

local function record_of(entry, from)
  return sub(entry, find(entry, '\t', from, true) + 1)
end

local leases, lost = {}, {} -- by id: the text, or false
local reopened = {} -- lost leases of the worker, which is alive, and their texts, by turns
local progress = call('GET', WORKER)
local known_seq, mark = 0, 0
if progress then
  known_seq, mark = match(progress, '^(%d+) (%d+)$')
  known_seq, mark = known_seq + 0, mark + 0
end
seq = voided_at_once > 0 and known_seq or seq
local states, shape_of = {}, {} -- of the windows of `hashes`, by place
local is_known = {} -- hashes of which a field is known, and so `ABOUT`; by starts
local refusals, verdicts = {}, {}

if voided_at_once == 0 then
  if acked > known_seq then
    return format('b %d %d', known_seq, mark)
  end
  if seq <= known_seq then
    return 'l'
  end
  local place = 0
  for h = 1, #hashes do
    local starts, ids, of = unpack(hashes[h])
    local texts = fetch(hash_of(starts), ids)
    for i = 1, #ids do
      local shape, text = shapes[of[i]], texts[i]
      place = place + 1
      shape_of[place], states[place] = shape, read_window(ids[i], starts, shape, text)
      if text then
        is_known[starts] = true
      end
    end
  end
  for i = 1, #same, 2 do
    states[same[i]] = states[same[i + 1]]
  end
  local has_lost = call('HLEN', LOST) > 0
  if has_lost and reopened_at_once > 0 then
    reopened = call('HRANDFIELD', LOST, reopened_at_once, 'WITHVALUES')
  end
  if #items > 0 then
    local named = {}
    for i = 1, #items do
      named[i] = items[i][2]
    end
    local texts = fetch(LEASES, named)
    for i = 1, #named do
      leases[named[i]] = texts[i]
    end
    if has_lost then
      texts = fetch(LOST, named)
      for i = 1, #named do
        lost[named[i]] = texts[i]
      end
    end
  end
end
