-- Empties one bucket.
--
-- KEYS[1]  the string that holds it
-- KEYS[2]  its entries as a sliding log
-- ARGV[1]  6 bytes: the bucket's name
--
-- Reply    one integer: 1 if there was a bucket, else 0. A key with a foreign value stays as it is.
--
-- Cost     one command, and three more if there is a bucket.
local value, name = redis.pcall("GET", KEYS[1]), ARGV[1]
if type(value) ~= "string" or #value % 37 ~= 5 or string.byte(value) ~= 16 then return {0} end
local place = string.find(value, name, 6, true)
while place and place % 37 ~= 6 do place = string.find(value, name, place + 1, true) end
if not place then return {0} end
if #value == 42 then
  redis.call("DEL", KEYS[1])
else
  redis.call("SET", KEYS[1], string.sub(value, 1, place - 1) .. string.sub(value, place + 37), "KEEPTTL")
end
if redis.call("TYPE", KEYS[2]).ok == "string" then redis.call("DEL", KEYS[2]) end
return {1}
