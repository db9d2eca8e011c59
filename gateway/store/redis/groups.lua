-- Puts some groups of a day into the index of its month, which a gateway has left out that knows no index.
--
-- Days begin with the mark "indexed", and gateways that add new groups to the index keep the mark (apply_writing.lua);
-- others write the field `?` without it. So the mark "indexing ID" is still there at the end if all groups that were
-- written meanwhile are in the index, too.
--
-- KEYS   1: the sums of a day, 2: the index of its month, a sorted set of groups, 3: days by when they are deleted
-- ARGV   1: where to go on, 2: how many groups at once, more or less, 3: an id that no other has, 4: name of the day,
--        5: name of the index among the days
-- Returns where to go on; at the end 0, or nothing where another gateway has written without the index.

local call, match = redis.call, string.match
local ABOUT, ABOUT_SUMS = '?', 'key, team, model, upstream, endpoint, parted by 0x1f: sums'
local KEPT_LONGER_S = 31 * 86400

local deleted_at = call('ZSCORE', KEYS[3], ARGV[4])
if not deleted_at then
  return '0'
end
if ARGV[1] == '0' then
  call('HSET', KEYS[1], ABOUT, ABOUT_SUMS .. '; indexing ' .. ARGV[3] .. '; for a report')
end
local found = call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local members = {}
for i = 1, #found[2], 2 do
  if found[2][i] ~= ABOUT then
    members[#members + 1] = '0'
    members[#members + 1] = found[2][i]
  end
end
for first = 1, #members, 1000 do
  call('ZADD', KEYS[2], unpack(members, first, math.min(first + 999, #members)))
end
if found[1] ~= '0' then
  return found[1]
end
call('ZADD', KEYS[3], 'GT', deleted_at + KEPT_LONGER_S, ARGV[5])
if match(call('HGET', KEYS[1], ABOUT) or '', '; indexing ([^;]*)') ~= ARGV[3] then
  return ''
end
call('HSET', KEYS[1], ABOUT, ABOUT_SUMS .. '; indexed; for the report ' .. ARGV[3])
return '0'
