-- Changes one document if it still is what was read, and all that goes with the change; or nothing.
--
-- KEYS   1: schema, 2: audit log, 3: secrets, 4: names of this kind, 5: documents of this kind,
--        6: last changes of decision journals; then for each window that is reset the hash in which it is
-- ARGV   1: kind, 2: name, 3: the document as it was read, 4: as it is from now on (both as '=TEXT', or '' for none),
--        5: entry for the audit log, 6: entries that are kept, 7: offset_us, 8: secrets to be added, 9: to be removed
--        (how many), 10: decision journal ('' for none), 11: number of this change in it; then these secrets, and for
--        each window its id, whether it is a rate (1 or 0), and how much is taken from it ('' for all)
--
-- Returns 1: applied; 0: the document is another; -1: a secret leads to another key.
--
-- Redis does not roll back a script that fails: each key is accessed before the first write, so that missing permissions
-- fail the script there. A killed server may have kept only a first part of the writes (apply_writing.lua): so the
-- document is written after its name and the audit entry, and deletions come last.

local SCHEMA, AUDIT, SECRETS, NAMES, DOCUMENTS, DECISIONS = unpack(KEYS)
local kind, name, before, after, audit, audit_kept, offset_us, added, removed, journal, number =
  unpack(ARGV)
local call, format = redis.call, string.format
added, removed = added + 0, removed + 0
local WINDOWS, SECRET = 6, 11 -- behind which they begin

local text = call('HGET', DOCUMENTS, name)
if (text and '=' .. text or '') ~= before then
  return 0
end
for i = 1, added do
  local owner = call('HGET', SECRETS, ARGV[SECRET + i])
  if owner and owner ~= name then
    return -1
  end
end
local gone = {}
for i = added + 1, added + removed do
  if call('HGET', SECRETS, ARGV[SECRET + i]) == name then
    gone[#gone + 1] = ARGV[SECRET + i]
  end
end
local time = call('TIME')
local now = format('%.0f', time[1] * 1000000 + time[2] + offset_us)
local states = {}
for i = 1, #KEYS - WINDOWS do
  local place = SECRET + added + removed + 3 * i - 2
  local id, is_rate, cleared = ARGV[place], ARGV[place + 1] == '1', ARGV[place + 2]
  local used, reserved, at = string.match(call('HGET', KEYS[WINDOWS + i], id) or '', '^(%d+) (%d+) (%d+)$')
  if reserved then
    local left = (is_rate or cleared == '') and 0 or math.max(0, used - cleared)
    states[#states + 1] = { KEYS[WINDOWS + i], id, format('%.0f %s %s', left, reserved, is_rate and now or at) }
  end
end
call('XLEN', AUDIT)
call('ZCARD', NAMES)
call('HLEN', DECISIONS)

call('SET', SCHEMA, '1', 'NX')
if after ~= '' then
  call('ZADD', NAMES, 0, name)
end
if audit ~= '' then
  call('XADD', AUDIT, 'MAXLEN', '~', audit_kept, '*', 'kind', kind, 'name', name, 'audit', audit)
end
for _, state in ipairs(states) do
  call('HSET', unpack(state))
end
for i = 1, added do
  call('HSET', SECRETS, ARGV[SECRET + i], name)
end
if after ~= '' then
  call('HSET', DOCUMENTS, name, string.sub(after, 2))
else
  call('HDEL', DOCUMENTS, name)
  call('ZREM', NAMES, name)
end
for _, secret in ipairs(gone) do
  call('HDEL', SECRETS, secret)
end
if journal ~= '' then
  call('HSET', DECISIONS, journal, number)
end
return 1
