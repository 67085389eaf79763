-- Writes patches and tails (entries of logs by key: {number of the first, bytes, head, ms to live; nil: as before}). A TTL
-- is given a quarter more than is needed, and the second that a life is rounded up to.
for i = 1, patched > 0 and subjects or 0 do
  local key, need, value = KEYS[i], needs[i], drafts and drafts[i] or values[i]
  if need and (grown and grown[i] or need > unpack_binary("<I4", value) * 1000000) then
    for j = 1, patched, 3 do
      if patches[j] == i then
        local offset, bytes = patches[j + 1], patches[j + 2]
        value = sub(value, 1, offset) .. bytes .. sub(value, offset + #bytes + 1)
      end
    end
    if grown and grown[i] and #value > LONG then
      -- Whoever adds a bucket to many sweeps out those that have meant nothing for so long that the clock cannot step back
      -- to when they did.
      local kept = {sub(value, 1, 4)}
      for place = 5, #value, 37 do
        if unpack_binary("<I7", value, place + 9) > now - BACK then kept[#kept + 1] = sub(value, place, place + 36) end
      end
      value = table.concat(kept)
    end
    if need > unpack_binary("<I4", value) * 1000000 then
      local life = ceil((need + (need - now) / 4) / 1000000)
      value = pack("<I4", life < FOREVER and life or FOREVER) .. sub(value, 5)
      redis.call("SET", key, value, "PX", ceil(life * 1000 - now / 1000))
    else
      redis.call("SET", key, value, "KEEPTTL")
    end
  elseif need then
    for j = 1, patched, 3 do
      if patches[j] == i then
        local offset = patches[j + 1]
        -- Redis is slow to make text of a number.
        redis.call("SETRANGE", key, offset == 12 and "12" or offset == 49 and "49" or offset, patches[j + 2])
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
