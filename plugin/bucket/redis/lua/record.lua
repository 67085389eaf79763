-- Keeps, reads, replaces or takes out one record, atomically.
--
-- KEYS[1]  the record
-- ARGV[1]  "add": keeps it unless there is one; "get"; "swap": replaces it if it is the old one, and keeps its TTL;
--          "take": deletes it
-- ARGV[2]  add: the record; swap: the old record
-- ARGV[3]  add: how long it is kept (ms); swap: the new record
--
-- Reply    the record that was there before, or nil
--
-- Cost     one command, two if the record changes.
local key, action, present = KEYS[1], ARGV[1], redis.call("GET", KEYS[1])
if action == "add" and not present then
  redis.call("SET", key, ARGV[2], "PX", ARGV[3])
elseif action == "swap" and present == ARGV[2] then
  redis.call("SET", key, ARGV[3], "KEEPTTL")
elseif action == "take" and present then
  redis.call("DEL", key)
end
return present
