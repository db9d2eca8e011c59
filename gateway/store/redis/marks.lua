-- Marks that change with the sums of a day: its field `?`, which each batch that changes them writes anew.
-- KEYS: the sums of days. Returns one text for all, with U+001E between; of a day without sums nothing.

local marks = {}
for place, key in ipairs(KEYS) do
  marks[place] = redis.call('HGET', key, '?') or ''
end
return table.concat(marks, '\30')
