-- One batch of one worker's calls, all of it or nothing. The effect of each item is defined in
-- gateway/store/__init__.py (`Store`). This file and the apply_*.lua beside it are one script, in the order of `APPLY`
-- in store.py.
--
-- Redis takes nothing back when a script fails halfway. So everything is read and worked out first, and written at the
-- end; and the first write is one that a server refuses when it may not write at all.
--
-- In front of it the gateway puts what is the same for all batches of a store (`_constants` of store.py):
-- BASE, WINDOWS, ALIVE, RECORDS, DAYS, RETENTION, SCHEMA, SILENT_US, MAX_GAP_US, REAPED_AT_ONCE, RECORDS_MAX, SUMS_S
--
-- KEYS   the worker's progress, BASE worker:WORKER; the others begin with the same {tag}, and so lie in the same slot
-- ARGV   1: [seq, acked, offset_us, voided_at_once, is_forgotten, reopened_at_once, hashes, shapes, same, is_shown,
--            groups, items, fields, measured, attributed], so that what many items share is read once:
--             a hash is [starts, windows, shapes], of each window its id and the place of its shape in `shapes`,
--             a shape is [limit, period_us, is_enforced],
--             `same` has places of windows that are an earlier one with another shape, each with the place of that one,
--             a group is [day, group, hour], and an item one of, counting windows (of all hashes) and groups from 1:
--               ["o" or "f" (forced), lease, window, amount, window, amount, ...]
--               ["r", "", window, amount, window, amount, ...], drawn for good and without a lease
--               ["c", lease, number, began_us, group, nine sums, window, amount, actual, ...]
--               ["v", lease, number]
--               ["d", lease, number, heir, window, amount, ...]
--             a field is of measures: model and upstream, parted by 0x1f; and of each closing `measured` has what adds
--             one to a counter of a field: [field, counter, field, counter, ...]
--             and `attributed` the fields of sums by user and tag in which it counts: key, team, model, name and value
--        2...: for each item what is kept of it: of an opening its entry (gateway/quota/ledger_entry.py), of a closing its
--           record, of a voiding and of a draw without a lease nothing, of a deferral its entry and its note with a tab between
--
-- Returns one text:
--   "b SEQ MARK"     the store is behind: it has forgotten what the worker knows to be applied
--   "l"              a late copy: a later batch was applied
--   "r LEFT"         in place of a batch, with voided_at_once > 0: that many leases of the worker are left
--   "a NOW LOST\n" and three lines: a letter for each item (g granted, r refused, - no draw); if `is_shown`, all
--                    windows as they are now: used reserved at_us; for each refused opening its windows as they
--                    were then
--
-- Numbers are doubles: whole ones are exact below 2^53. None is ever written by cjson, which keeps 14 digits only.

local floor, max, min = math.floor, math.max, math.min
local format, find, sub, match, gmatch = string.format, string.find, string.sub, string.match, string.gmatch
local call, decode, insert, tonumber, unpack = redis.call, cjson.decode, table.insert, tonumber, unpack

local EXACT = 9007199254740992 -- 2^53
local KEPT_S = 8640000 -- 100 days: what is known of workers that never came back
local AT_ONCE = 1000 -- arguments of one command; Lua has room for 8000

-- %d takes a tenth of the time of %.0f, and is as exact where a C long has 64 bits.
if format('%d', EXACT) ~= '9007199254740992' then
  local plain_format = format
  format = function(form, ...)
    return plain_format(string.gsub(form, '%%d', '%%.0f'), ...)
  end
end

-- A field of each large hash. It describes the hash to a reader. With more than 64 bytes it keeps Redis from storing
-- the hash as a list, whose fields are found by a linear search. It is written with the first fields of a hash. That of a
-- day's sums changes with each batch that changes them (daily_sums.py).
local ABOUT = '?'
local ABOUT_WINDOWS = 'window: used (settled or the level of a rate), reserved (drawn), at_us (when a rate last leaked)'
local ABOUT_SUMS = 'key, team, model, upstream, endpoint, parted by 0x1f: sums in the order of gateway/quota/ledger_entry.py'

local WORKER = KEYS[1]
local worker = sub(WORKER, #BASE + 8)
local LEASES, LOST = BASE .. 'leases:' .. worker, BASE .. 'lost:' .. worker

local seq, acked, offset_us, voided_at_once, is_forgotten, reopened_at_once, hashes, shapes, same, is_shown, groups,
  items, fields, measured, attributed = unpack(decode(ARGV[1]))

local time = call('TIME')
local now = time[1] * 1000000 + time[2] + offset_us
local now_s = floor(now / 1000000)
local now_text = format('%d', now)
