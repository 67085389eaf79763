-- Keeps, reads, replaces, claims or takes out one record, atomically.
--
-- A claimed record is kept behind a mark: a zero byte, the claimant and a zero byte. Its claimant can claim it again,
-- and to all other actions it is gone, but add does not replace it. A claimant that has the record leaves a one byte in
-- its place.
--
-- KEYS[1]  the record
-- ARGV[1]  "add": keeps it unless there is one; "get"; "swap": replaces it if it is the old one, and keeps its TTL;
--          "take": deletes it; "claim": marks it; "own": replaces it by a mark
-- ARGV[2]  add: the record; swap: the old record; claim, own: the mark
-- ARGV[3]  add: how long it is kept (ms); swap: the new record; claim, own: how long the marked record is kept (ms)
--
-- Reply    the record that was there before, or nil; claim, own: "" if another claimant has it; add: "" if one has it;
--          own: the one byte if this claimant has it
--
-- Cost     one command, two if the record changes.
local key, action, present = KEYS[1], ARGV[1], redis.call("GET", KEYS[1]) -- nothing is written yet
if present and string.byte(present) == 0 then
  local mark, claims = ARGV[2], action == "claim" or action == "own"
  if claims and string.sub(present, 1, #mark) == mark then
    return string.sub(present, #mark + 1)
  end
  return (claims or action == "add") and ""
end
if action == "add" and not present then
  redis.call("SET", key, ARGV[2], "PX", ARGV[3])
elseif action == "swap" and present == ARGV[2] then
  redis.call("SET", key, ARGV[3], "KEEPTTL")
elseif action == "take" and present then
  redis.call("DEL", key)
elseif action == "claim" and present then
  redis.call("SET", key, ARGV[2] .. present, "PX", ARGV[3])
elseif action == "own" and present then
  redis.call("SET", key, ARGV[2] .. "\1", "PX", ARGV[3])
  return "\1"
end
return present
