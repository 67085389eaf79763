-- Empties one bucket, whatever it holds.
--
-- KEYS[1]  the subject that has it
-- KEYS[2]  the entries that it has as a sliding log
-- ARGV[1]  8 bytes: the bucket's name
--
-- Reply    one integer: 1 if the bucket was there, else 0. A key that holds something that is not ours is left alone.
--
-- Cost     two commands, and two more if the bucket is there.
local value, name = redis.pcall("GET", KEYS[1]), ARGV[1]
if type(value) ~= "string" or #value % 37 ~= 4 then return {0} end
local place = string.find(value, name, 5, true)
while place and place % 37 ~= 5 do place = string.find(value, name, place + 1, true) end
if not place then return {0} end
if #value == 41 then
  redis.call("DEL", KEYS[1])
else
  redis.call("SET", KEYS[1], string.sub(value, 1, place - 1) .. string.sub(value, place + 37), "KEEPTTL")
end
if redis.call("TYPE", KEYS[2]).ok == "string" then redis.call("DEL", KEYS[2]) end
return {1}
