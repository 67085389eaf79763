-- Splits each chunk of a subject in two, so that a request reads few buckets that it does not need. A bucket lies in
-- the chunk whose number is the first byte of its name modulo 2^level. That byte is of its endpoint, so the buckets of
-- one endpoint lie together. Those whose byte is 0 have no endpoint and stay in the head. At level 0 the head is the
-- only chunk.
--
-- KEYS[1]  the head
-- KEYS     then the chunks of the next level, from 0 on: those of the level are among them. All in one slot.
-- ARGV[1]  the first byte of the head: 16 × version + level
--
-- Reply    one integer: the subject's level from now on. If it is not the next one, nothing was done: another node has
--          split it, or the head is gone.
--
-- Cost     TIME, one GET, one MGET, a SET or DEL for each chunk. Buckets that count as empty are left out.
local byte, sub, unpack_binary = string.byte, string.sub, struct.unpack
local first, chunks = tonumber(ARGV[1]), #KEYS - 1

-- Out: now (µs since the epoch by Redis's clock, the one clock of all nodes), STEP_BACK (limit.StepBack: how many µs it
-- may step back). Tests assemble the script with another clock.
local now, STEP_BACK = redis.call("TIME"), 3600000000 -- nothing is written yet
now = now[1] * 1000000 + now[2]

local head = redis.pcall("GET", KEYS[1])
if type(head) ~= "string" or #head % 37 ~= 5 then return {0} end
if byte(head) ~= first then return {byte(head) % 16} end
local sources = {head}
if first % 16 > 0 then sources = redis.call("MGET", unpack(KEYS, 2, 1 + chunks / 2)) end
local next_first, texts, lives = string.char(first + 1), {}, {}
local own = {first % 16 > 0 and sub(head, 6) or ""}
for i = 1, #sources do
  local source = sources[i]
  if source and byte(source) == first and #source % 37 == 5 then
    for place = 6, #source, 37 do
      if unpack_binary("<I4", source, place + 7) * 1000000 > now - STEP_BACK then
        local endpoint = byte(source, place)
        local chunk = endpoint % chunks + 1
        if endpoint == 0 then
          own[#own + 1] = sub(source, place, place + 36)
        else
          if not texts[chunk] then
            texts[chunk], lives[chunk] = {next_first, sub(source, 2, 5)}, unpack_binary("<I4", source, 2)
          end
          texts[chunk][#texts[chunk] + 1] = sub(source, place, place + 36)
        end
      end
    end
  end
end
local life = unpack_binary("<I4", head, 2)
if first % 16 == 0 then -- from the first split on, a head outlives its chunks by an hour at most: see write.lua
  life = life + 3600 < 4294967295 and life + 3600 or 4294967295
end
local function set(key, text, life)
  redis.call("SET", key, text, "PX", math.max(math.ceil(life * 1000 - now / 1000), 1))
end
set(KEYS[1], next_first .. struct.pack("<I4", life) .. table.concat(own), life)
for chunk = 1, chunks do
  if lives[chunk] then
    set(KEYS[1 + chunk], table.concat(texts[chunk]), lives[chunk])
  else
    redis.call("DEL", KEYS[1 + chunk])
  end
end
return {first % 16 + 1}
