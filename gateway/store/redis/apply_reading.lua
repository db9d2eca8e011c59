-- What Redis knows of the worker, of the windows and of the leases of this batch.

local function fetch(key, fields)
  local values = {}
  for first = 1, #fields, AT_ONCE do
    local last = min(first + AT_ONCE - 1, #fields)
    local found = call('HMGET', key, unpack(fields, first, last))
    for i = first, last do
      values[fields[i]] = found[i - first + 1]
    end
  end
  return values
end

local function hash_of(starts)
  return starts == '' and WINDOWS or base .. 'windows:' .. starts
end

local windows = {} -- by id, leaked until now

local function know_window(kind, text)
  local used, reserved, at = 0, 0, now
  if text then
    used, reserved, at = match(text, '^(%d+) (%d+) (%d+)$')
  end
  local window = { used = used + 0, reserved = reserved + 0, at = at + 0, starts = kind[2] }
  leak(window, kind[4], kind[5], now)
  windows[kind[1]] = window
  return window
end

local function window_of(kind)
  return windows[kind[1]] or know_window(kind, call('HGET', hash_of(kind[2]), kind[1]))
end

local function head_of(entry, from)
  return decode(sub(entry, from, find(entry, '\t', from, true) - 1))
end

local function record_of(entry, from)
  return sub(entry, find(entry, '\t', from, true) + 1)
end

local leases, lost = {}, {} -- by id: the text, or false
local reopened = {} -- lost leases of the worker, which is alive, and their texts, by turns
local known_seq, mark = 0, 0
local progress = call('GET', WORKER)
if progress then
  known_seq, mark = match(progress, '^(%d+) (%d+)$')
  known_seq, mark = known_seq + 0, mark + 0
end
seq = voided_at_once > 0 and known_seq or seq
local kinds, shown, groups, items, fields, measured, attributed = unpack(decode(ARGV[2]))
local state_of = {} -- as `kinds`
local is_about = {} -- whether the hash has its `ABOUT`; by starts
local refusals, verdicts = {}, {}

if voided_at_once == 0 then
  if acked > known_seq then
    return format('b %.0f %.0f', known_seq, mark)
  end
  if seq <= known_seq then
    return 'l'
  end
  local ids, asked = {}, {}
  for i = 1, #kinds do
    local kind = kinds[i]
    local some = ids[kind[2]]
    if not some then
      some = {}
      ids[kind[2]] = some
    end
    some[#some + 1] = kind[1]
  end
  for starts, some in pairs(ids) do
    some[#some + 1] = ABOUT
    asked[starts] = fetch(hash_of(starts), some)
    is_about[starts] = asked[starts][ABOUT]
  end
  for i = 1, #kinds do
    local kind = kinds[i]
    state_of[i] = windows[kind[1]] or know_window(kind, asked[kind[2]][kind[1]])
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
    leases = fetch(LEASES, named)
    if has_lost then
      lost = fetch(LOST, named)
    end
  end
end
