-- Writes patches, tails (entries of logs by key: {number of the first, bytes, header, ms to live; nil: as before}) and
-- slots. A TTL is a quarter longer than needed, rounded up to a second.
-- In: patches, patched, needs, drafts, grown, tails, slots. Out: to_split (numbers of the strings that should be
-- split).
local lives -- by subject: the lives that were written
for i = 1, patched > 0 and subjects or 0 do
  local key, need, value = keys[key_offset + i], needs[i], drafts and drafts[i] or values[i]
  if need and (grown and grown[i] or need > unpack_binary("<I4", value, 2) * 1000000) then
    for j = 1, values[i] and patched or 0, 3 do -- the draft of a new string has everything
      if patches[j] == i then
        local offset, bytes = patches[j + 1], patches[j + 2]
        value = sub(value, 1, offset) .. bytes .. sub(value, offset + #bytes + 1)
      end
    end
    if grown and grown[i] and #value > LONG then
      -- A new bucket in a long string drops those that have counted as empty for longer than the clock may step back.
      local kept = {sub(value, 1, 5)}
      for place = 6, #value, 37 do
        if unpack_binary("<I4", value, place + 7) * 1000000 > now - STEP_BACK then
          kept[#kept + 1] = sub(value, place, place + 36)
        end
      end
      value = table.concat(kept)
      local first = byte(request, 6 + i)
      if #value > FULL and (first >= 128 or first % 16 == 0) then -- what a head keeps beside chunks is not split
        to_split = to_split or {}
        to_split[#to_split + 1] = i
      end
    end
    if need > unpack_binary("<I4", value, 2) * 1000000 then
      local life = ceil((need + (need - now) / 4) / 1000000)
      local text = sub(value, 1, 1) .. pack("<I4", life < FOREVER and life or FOREVER) .. sub(value, 6)
      redis.call("SET", key, text, "PX", string.format("%d", ceil(life * 1000 - now / 1000)))
      lives = lives or {false, false, false, false}
      lives[i] = life
      local head = i
      while byte(request, 6 + head) >= 128 do head = head - 1 end
      if head < i and values[head] ~= "" and life > (lives[head] or unpack_binary("<I4", values[head], 2)) then
        -- A head outlives its chunks by an hour: a tenant that returns in time need not be split again.
        life = life + 3600
        lives[head] = life
        redis.call("SETRANGE", keys[key_offset + head], 1, pack("<I4", life < FOREVER and life or FOREVER))
        redis.call("PEXPIRE", keys[key_offset + head], ceil(life * 1000 - now / 1000))
      end
    else
      redis.call("SET", key, value, "KEEPTTL")
    end
  elseif need then
    for j = 1, patched, 3 do
      if patches[j] == i then
        local offset = patches[j + 1]
        -- Redis formats a number slowly.
        redis.call("SETRANGE", key, offset == 11 and "11" or string.format("%d", offset), patches[j + 2])
      end
    end
  end
end
if tails then
  for key, tail in pairs(tails) do
    if tail[1] == 0 then
      if tail[4] then
        redis.call("SET", key, tail[3] .. tail[2], "PX", tail[4])
      else
        redis.call("SET", key, tail[3] .. tail[2], "KEEPTTL")
      end
    else
      redis.call("SETRANGE", key, 0, tail[3])
      redis.call("SETRANGE", key, 15 + tail[1] * 14, tail[2])
      if tail[4] then redis.call("PEXPIRE", key, tail[4]) end
    end
  end
end
for i = 1, slots and #slots or 0, 5 do
  local key, life = slots[i], slots[i + 4]
  redis.call("ZADD", key, slots[i + 2], slots[i + 1])
  if redis.call("ZCARD", key) > slots[i + 3] then -- some do not count any more
    redis.call("ZREMRANGEBYSCORE", key, "-inf", now)
    redis.call("ZREMRANGEBYSCORE", key, string.format("(%.0f", now + AHEAD + MOST_SLOT), "+inf")
  end
  if redis.call("PTTL", key) < life then redis.call("PEXPIRE", key, ceil(life * 1.25)) end
end
