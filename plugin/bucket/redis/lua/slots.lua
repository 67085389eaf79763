-- Shows the slots of a concurrency limit, or deletes them.
--
-- KEYS[1]  the slots, see concurrency.lua
-- ARGV[1]  the most that are shown: those with the first deadlines; "-1": deletes all
--
-- Reply    integers: now (Redis's clock, µs since the epoch), the number of slots, and their deadlines (µs). A key with
--          a foreign type has none, and stays as it is.
--
-- Cost     TIME, TYPE, one ZCOUNT, and a ZRANGE or a DEL.
--@ clock
local key, most = KEYS[1], tonumber(ARGV[1])
if redis.call("TYPE", key).ok ~= "zset" then return {now, 0} end
local from, latest = string.format("(%.0f", now), string.format("%.0f", now + 3600000000 + 86400000000)
local reply = {now, redis.call("ZCOUNT", key, from, latest)}
if most < 0 then
  redis.call("DEL", key)
else
  local found = redis.call("ZRANGE", key, from, latest, "BYSCORE", "LIMIT", 0, most, "WITHSCORES")
  for i = 2, #found, 2 do reply[#reply + 1] = tonumber(found[i]) end
end
return reply
