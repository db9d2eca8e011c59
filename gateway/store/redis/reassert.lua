-- Writes again, as it is, everything that a batch whose end is not known may have changed. Run on each new connection
-- before anything else is written.
--
-- A server that is killed while it writes its append-only file leaves a piece of a transaction at the end of it. Redis (all
-- versions to date) and Valkey (until 2026) keep that piece: it is not executed at the next start, but at the one after
-- that, together with the first transaction written meanwhile. That transaction has to be this one, which overwrites
-- what the piece may hold: otherwise the piece stays, and the mark in it makes the store take the ends of the batch, when
-- they are sent again, for applied. The piece belongs to a batch that is in the hash `sent`, because a worker writes it
-- there by a command of its own before the batch.
--
-- In front of it the gateway puts the constants of apply.lua.
--
-- KEYS   hash: worker -> the first argument of apply.lua for its last batch
-- Returns the number of batches whose end is not known.
--
-- Records of the piece cannot be overwritten. They are deleted at the first connection after it was executed: they are
-- between the newest record that is there before, and the id of an entry that is written, and deleted, here (`GAPS`).

local find, sub, match, format, insert = string.find, string.sub, string.match, string.format, table.insert
local call, decode, unpack = redis.call, cjson.decode, unpack

local AT_ONCE = 1000 -- arguments of one command
local ALL = '1000000' -- fields of a hash, at most
local ABOUT = '?'
local GAPS = BASE .. 'gaps' -- text: "ID ID ID ID ...": between each two ids no batch that was applied has written a record
local GAPS_KEPT = 64
local AT_MOST = '1000' -- records of one piece

local named = {} -- by key of a hash: what may have changed in it

local function note(key, name)
  local names = named[key]
  if not names then
    names = {}
    named[key] = names
  end
  names[name] = true
end

local function note_with_about(key, name)
  note(key, name)
  note(key, ABOUT)
end

local function note_sums(day, group, hour)
  note_with_about(BASE .. 'sums:' .. day, group)
  note_with_about(BASE .. 'sums:' .. hour, group)
end

local function note_window(starts, id)
  note_with_about(starts == '' and WINDOWS or BASE .. 'windows:' .. starts, id)
end

-- The windows of a lease, and the sums that are changed when it is lost, or no longer is.
-- `text` has the entry (gateway/quota/ledger_entry.py) behind its last prefix.
local function note_entry(text, prefixes)
  local from = 1
  for _ = 1, prefixes do
    from = find(text, '\t', from, true) + 1
  end
  local till = find(text, '\t', from, true)
  local head, seconds = decode(sub(text, from, till - 1)), match(text, '^%["[^"]*",(%d+)', till + 1)
  for _, claim in ipairs(head[5]) do
    note_window(claim[2], claim[1])
  end
  note_sums(head[2], head[3], head[2] .. format('T%02d', math.floor((seconds or 0) % 86400 / 3600)))
end

local function note_lease(worker, lease)
  local leases, lost = BASE .. 'leases:' .. worker, BASE .. 'lost:' .. worker
  note(leases, lease)
  note(lost, lease)
  local open, closed = call('HGET', leases, lease), call('HGET', lost, lease)
  if open then
    pcall(note_entry, open, 1)
  end
  if closed then
    pcall(note_entry, closed, 2)
  end
end

local function note_all_of(worker, hash)
  local found = call('HRANDFIELD', BASE .. hash .. ':' .. worker, ALL, 'WITHVALUES')
  for i = 1, #found, 2 do
    note_lease(worker, found[i])
  end
end

local function note_item(worker, item, groups, fields, measured, attributed)
  local kind, lease = item[1], item[2]
  if lease ~= '' then
    note_lease(worker, lease)
  end
  if kind == 'd' then
    note(BASE .. 'leases:' .. item[4], lease)
    note(BASE .. 'deferred', lease)
  elseif kind == 'c' then
    local day, group, hour = unpack(groups[item[5]])
    note_sums(day, group, hour)
    for i = 1, #measured, 2 do
      note(BASE .. 'sums:latency-' .. hour, fields[measured[i]])
      note(BASE .. 'sums:latency-' .. sub(hour, 1, 10), fields[measured[i]])
    end
    for i = 1, #attributed do
      local field = fields[attributed[i]]
      note_with_about(BASE .. 'sums:tags-' .. day, field)
      note_with_about(BASE .. 'sums:tags-' .. day, match(field, '^.*\31') .. 'other')
      note(BASE .. 'sums:tagcounts-' .. day, match(field, '^[^\31]*'))
    end
  end
end

local function note_batch(worker, batch)
  local is_retirement, hashes, groups, items, fields, measured, attributed =
    batch[4] > 0, batch[7], batch[11], batch[12], batch[13], batch[14], batch[15]
  for _, hash in ipairs(hashes) do
    for _, id in ipairs(hash[2]) do
      note_window(hash[1], id)
    end
  end
  for i, item in ipairs(items) do
    note_item(worker, item, groups, fields, measured[i], attributed[i])
  end
  note_all_of(worker, 'lost') -- which it may have opened again
  if is_retirement then
    note_all_of(worker, 'leases')
  end
end

local function write(command, key, arguments)
  for first = 1, #arguments, AT_ONCE do
    call(command, key, unpack(arguments, first, math.min(first + AT_ONCE - 1, #arguments)))
  end
end

-- A command without effect is not in the append-only file: what is not there is written before it is deleted.
local function write_again(key, names, stamp)
  local is_of_sums = find(key, '^sums:', #BASE + 1)
  local written, gone = {}, {}
  for name in pairs(names) do
    local text = call('HGET', key, name)
    if text and name == ABOUT and is_of_sums then
      text = match(text, '^[^;]*') .. stamp -- for the caches of reports
    end
    insert(written, name)
    insert(written, text or '')
    if not text then
      insert(gone, name)
    end
  end
  write('HSET', key, written)
  write('HDEL', key, gone)
  if find(key, '^lost:', #BASE + 1) then
    redis.pcall('PERSIST', key) -- which older gateways gave a lifetime; some users may not
  end
end

local function write_worker_again(worker, alive_us)
  local key = BASE .. 'worker:' .. worker
  local progress = call('GET', key)
  call('SET', key, progress or '')
  if not progress then
    call('DEL', key)
  end
  if alive_us then
    call('ZREM', ALIVE, worker)
    call('ZADD', ALIVE, alive_us, worker)
  end
end

local gaps = {}
for id in string.gmatch(call('GET', GAPS) or '', '%S+') do
  insert(gaps, id)
end

local function delete_records_in_gaps()
  for i = 1, #gaps, 2 do
    local ids = {}
    for _, record in ipairs(call('XRANGE', RECORDS, '(' .. gaps[i], '(' .. gaps[i + 1], 'COUNT', AT_MOST)) do
      insert(ids, record[1])
    end
    write('XDEL', RECORDS, ids)
  end
end

local function note_gap()
  local newest = call('XREVRANGE', RECORDS, '+', '-', 'COUNT', '1')[1]
  local first, last = newest and newest[1] or '0-0', call('XADD', RECORDS, '*', 'r', '')
  call('XDEL', RECORDS, last)
  if gaps[#gaps - 1] == first then
    gaps[#gaps] = last
  else
    insert(gaps, first)
    insert(gaps, last)
  end
  call('SET', GAPS, table.concat(gaps, ' ', math.max(1, #gaps - 2 * GAPS_KEPT + 1)))
end

delete_records_in_gaps()
local open = {} -- workers whose last batch may or may not have been applied
local sent = call('HRANDFIELD', KEYS[1], ALL, 'WITHVALUES')
for i = 1, #sent, 2 do
  local worker, text = sent[i], sent[i + 1]
  local seq, voided_at_once = match(text, '^%[(%d+),%d+,%-?%d+,(%d+),')
  local known = match(call('GET', BASE .. 'worker:' .. worker) or '', '^%d+') or 0
  if seq and (seq + 0 > known + 0 or voided_at_once ~= '0') then
    open[worker] = text
  end
end
if not next(open) then
  return 0
end

local count, alive_us = 0, {}
for worker, text in pairs(open) do
  count = count + 1
  pcall(function()
    note_batch(worker, decode(text))
  end)
end
-- Such a batch may also have lost the leases of workers that are silent; those that soon will be are among them.
local alive = call('ZRANGE', ALIVE, '0', '-1', 'WITHSCORES')
local newest = alive[#alive] or 0
for i = 1, #alive, 2 do
  local worker, at = alive[i], alive[i + 1]
  if at + 0 < newest - SILENT_US / 2 then
    note_all_of(worker, 'leases')
    open[worker] = open[worker] or ''
  end
  alive_us[worker] = at
end

local time = call('TIME')
local stamp = '; last written at ' .. time[1] .. format('%06d', time[2]) .. ' on a new connection'
for key, names in pairs(named) do
  write_again(key, names, stamp)
end
for worker in pairs(open) do
  write_worker_again(worker, alive_us[worker])
end
note_gap()
return count
