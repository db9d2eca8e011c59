-- Whether a batch would be applied now: each command of apply.lua, reassert.lua and change.lua, on an unused key.
-- KEYS: a key with the store's {tag}. In a script that fails halfway nothing is taken back, so what the user may not do
-- has to show itself before the first batch.

local key = KEYS[1]
local call = redis.call

call('SET', key, '')
call('SET', key, '', 'NX')
call('GET', key)
call('DEL', key)
call('HSET', key, 'a', '', 'b', '')
call('HMGET', key, 'a')
call('HGET', key, 'a')
call('HLEN', key)
call('HSCAN', key, '0', 'COUNT', 1)
call('HRANDFIELD', key, 1, 'WITHVALUES')
call('HDEL', key, 'a')
call('DEL', key)
local id = call('XADD', key, '*', 'r', '')
call('XLEN', key)
call('XRANGE', key, '-', '+', 'COUNT', 1)
call('XREVRANGE', key, '+', '-', 'COUNT', 1)
call('XTRIM', key, 'MAXLEN', '~', 1)
call('XDEL', key, id)
call('DEL', key)
call('ZADD', key, 1, 'a')
call('ZRANGEBYSCORE', key, '-inf', 0)
call('ZRANGE', key, -1, -1, 'WITHSCORES')
call('ZCARD', key)
call('ZSCORE', key, 'a')
call('ZREM', key, 'a')
call('UNLINK', key)
return redis.call('TIME')[1]
