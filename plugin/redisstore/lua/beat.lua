-- Tells that a node lives, or lives no more, and counts those that do.
--
-- KEYS[1]  the nodes of one namespace: a sorted set, each node with the instant (ms since the epoch) at which it will be
--          taken for dead
-- ARGV[1]  the node
-- ARGV[2]  for how long it counts as alive (ms); 0 takes it out
--
-- Reply    one integer: how many nodes live, this one included
--
-- Cost     TIME and four commands.
local now, ttl = redis.call("TIME"), tonumber(ARGV[2])
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ttl > 0 then
  redis.call("ZADD", KEYS[1], now + ttl, ARGV[1]) -- first: a full Redis refuses only a script's first write
  redis.call("PEXPIRE", KEYS[1], 10 * ttl)
else
  redis.call("ZREM", KEYS[1], ARGV[1])
end
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZREMRANGEBYSCORE", KEYS[1], now + 3600001, "+inf") -- from before the clock stepped back
return {redis.call("ZCARD", KEYS[1])}
