-- Reads or swaps one record, atomically.
--
-- KEYS[1]  the record
-- ARGV[1]  "get"; "swap": replaces it if it is the old one
-- ARGV[2]  swap: the old record; "": there is none
-- ARGV[3]  swap: the new record; "": deletes the old one
-- ARGV[4]  swap: how long the new one is kept (ms); "0": as long as the old one
--
-- Reply    the record that was there before, or nil
--
-- Cost     one command, two if the record changes.
local key, action, present = KEYS[1], ARGV[1], redis.call("GET", KEYS[1]) -- nothing is written yet
if action == "swap" and (present or "") == ARGV[2] then
  if ARGV[3] == "" then
    redis.call("DEL", key)
  elseif ARGV[4] == "0" then
    redis.call("SET", key, ARGV[3], "KEEPTTL")
  else
    redis.call("SET", key, ARGV[3], "PX", ARGV[4])
  end
end
return present
