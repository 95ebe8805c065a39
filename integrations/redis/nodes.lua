-- How many processes use this store? Each says so every second and is forgotten after a few.
--
-- KEYS[1]  a sorted set of process ids by the time they were last seen
-- ARGV[1]  the id of this process
--
-- Returns their number, as text.

local GONE = 5000   -- milliseconds: five signs of life missed

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - GONE))
redis.call('PEXPIRE', KEYS[1], GONE)
return tostring(redis.call('ZCARD', KEYS[1]))
