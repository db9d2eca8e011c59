-- Takes rows of another store into this one, each once. gateway/wings/transfer/rows.py explains what "taken" is.
--
-- KEYS   1: hash: mark of a row -> what was taken of it, 2: sorted set: periods by when retention deletes them
-- ARGV   1: what is taken, 2: how the stream's or the sums' key begins, 3: a stamp that no other batch has,
--        4: what a stream keeps at most; 0: all, 5...: the rows as JSON
--          add     [mark, hash, field, numbers, period, forgotten_at, form]; `numbers` as a text. form: `sums`, `tag`
--                  (the same, and counted in tagcounts), `window`, or the counter of a text of counters
--          append  [mark, position, member, value, member, value, ...], all of one log
--          rate    [mark, hash, window, used, at_us]
--
-- Numbers are doubles, exact below 2^53, and never written by cjson.

local call, decode, insert, unpack = redis.call, cjson.decode, table.insert, unpack
local format, match, gmatch, max = string.format, string.match, string.gmatch, math.max
local TAKEN, PERIODS = KEYS[1], KEYS[2]
local deed, base, stamp, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ABOUT_SUMS = 'key, team, model, upstream, endpoint, parted by 0x1f: sums; last written by an import at ' .. stamp
local ABOUT_WINDOWS = 'window: used (settled or the level of a rate), reserved (drawn), at_us (when a rate last leaked)'

local function split(text)
  local numbers = {}
  for number in gmatch(text or '', '%d+') do
    insert(numbers, number + 0)
  end
  return numbers
end

-- Each number of `text`, plus what `new` has more than `old`.
local function changed(text, new, old)
  local own, numbers = split(text), {}
  new, old = split(new), split(old)
  for i = 1, #new do
    numbers[i] = format('%.0f', max(0, (own[i] or 0) + new[i] - (old[i] or 0)))
  end
  return table.concat(numbers, ' ')
end

local function add(mark, hash, field, numbers, period, forgotten_at, form)
  local old = call('HGET', TAKEN, mark) or ''
  if old == numbers then
    return
  end
  local key, text = base .. hash, call('HGET', base .. hash, field)
  if form == 'window' then
    local used, rest = match(text or '', '^(%d+) (.*)$')
    call('HSET', key, field, changed(used, numbers, old) .. ' ' .. (rest or '0 ' .. stamp), '?', ABOUT_WINDOWS)
  elseif form == 'sums' or form == 'tag' then
    if form == 'tag' and not text then
      call('HINCRBY', base .. 'sums:tagcounts-' .. match(hash, '%d+%-%d+%-%d+$'), match(field, '^[^\31]*'), 1)
      call('ZADD', PERIODS, forgotten_at, 'tagcounts-' .. match(hash, '%d+%-%d+%-%d+$'))
    end
    local sums = changed(text, numbers, old)
    call('HSET', key, field, sums, '?', ABOUT_SUMS)
    if match(sums, '^0 ') then
      call('HDEL', key, field)
    end
  else
    local parts, known = {}, nil
    for counter, number in gmatch(text or '', '(%d+):(%d+)') do
      if counter == form then
        known = number
      else
        insert(parts, counter .. ':' .. number)
      end
    end
    insert(parts, form .. ':' .. changed(known, numbers, old))
    call('HSET', key, field, table.concat(parts, ' '))
  end
  call('ZADD', PERIODS, forgotten_at, period)
  call('HSET', TAKEN, mark, numbers)
end

local last -- position in the log
local function append(mark, position, ...)
  last = last or call('HGET', TAKEN, mark) or ''
  if position > last then
    if most ~= '0' then
      call('XADD', base, 'MAXLEN', '~', most, '*', ...)
    else
      call('XADD', base, '*', ...)
    end
    last = position
    call('HSET', TAKEN, mark, position)
  end
end

local function put_rate(mark, hash, window, used, at)
  local text, old = call('HGET', base .. hash, window), call('HGET', TAKEN, mark) or '0 0'
  if old == used .. ' ' .. at then
    return
  end
  local level, reserved, since = match(text or '', '^(%d+) (%d+) (%d+)$')
  if not text or old == level .. ' ' .. since then
    level, since = used, at
  else -- it is used here, too
    level = format('%.0f', level + max(0, used - match(old, '^%d+')))
  end
  call('HSET', base .. hash, window, format('%s %s %s', level, reserved or '0', since), '?', ABOUT_WINDOWS)
  call('HSET', TAKEN, mark, used .. ' ' .. at)
end

local deeds = { add = add, append = append, rate = put_rate }
call('HLEN', TAKEN) -- whatever keeps us from a key shows itself before anything is written
for i = 5, #ARGV do
  deeds[deed](unpack(decode(ARGV[i])))
end
return #ARGV - 4
