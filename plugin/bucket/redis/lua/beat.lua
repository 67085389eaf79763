-- Records that a node is live, or that it has left, and counts the live nodes.
--
-- KEYS[1]  the nodes of one namespace: a sorted set of nodes by the instant (ms since the epoch) from which each counts
--          as silent
-- ARGV[1]  the node
-- ARGV[2]  how long it counts as live (ms); 0 removes it
--
-- Reply    one integer: the number of live nodes, this one included
--
-- Cost     TIME and five commands.
local now, node, ttl = redis.call("TIME"), ARGV[1], tonumber(ARGV[2]) -- nothing is written yet
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ttl > 0 then
  redis.call("ZADD", KEYS[1], now + ttl, node) -- first, because a full Redis stops a script only at its first write
  redis.call("PEXPIRE", KEYS[1], 10 * ttl)
else
  redis.call("ZREM", KEYS[1], node)
end
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZREMRANGEBYSCORE", KEYS[1], now + 3600001, "+inf") -- from before the clock stepped back
return {redis.call("ZCARD", KEYS[1])}
