-- The keys to which secrets lead.
--
-- KEYS   1: secrets, 2: documents of keys
-- ARGV   SHA-256 of each secret, in hex
--
-- Returns for each the key's document, or nothing.

local found = {}
for i = 1, #ARGV do
  local key = redis.call('HGET', KEYS[1], ARGV[i])
  found[i] = key and redis.call('HGET', KEYS[2], key)
end
return found
