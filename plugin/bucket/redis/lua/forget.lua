-- Empties one bucket.
--
-- KEYS[1]  the head of its subject
-- KEYS[2]  the string that holds it: a chunk, or the head again
-- KEYS[3]  its entries as a sliding log
-- ARGV[1]  1 byte that the head and the chunk begin with: 16 × version + level; 6 bytes: the bucket's name
--
-- Reply    one integer: 1 if there was a bucket, else 0. A key with a foreign value stays as it is.
--          -1 - level: nothing was done, because the subject has this level.
--
-- Cost     two commands, one more for a chunk, and two more if there is a bucket.
local first, name = string.byte(ARGV[1]), string.sub(ARGV[1], 2)
local value = redis.pcall("GET", KEYS[1])
local found = type(value) == "string" and string.byte(value) or nil
if found ~= first then
  if found and found >= 16 and found < 32 then return {-1 - found % 16} end
  if first % 16 > 0 then return {-1} end
  return {0}
end
if KEYS[2] ~= KEYS[1] then value = redis.pcall("GET", KEYS[2]) end
if type(value) ~= "string" or #value % 37 ~= 5 or string.byte(value) ~= first then return {0} end
local place = string.find(value, name, 6, true)
while place and place % 37 ~= 6 do place = string.find(value, name, place + 1, true) end
if not place then return {0} end
if #value == 42 and (KEYS[2] ~= KEYS[1] or first % 16 == 0) then -- a head outlives its chunks
  redis.call("DEL", KEYS[2])
else
  redis.call("SET", KEYS[2], string.sub(value, 1, place - 1) .. string.sub(value, place + 37), "KEEPTTL")
end
if redis.call("TYPE", KEYS[3]).ok == "string" then redis.call("DEL", KEYS[3]) end
return {1}
