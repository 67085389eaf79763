-- Writes drafts (states by bucket), tails (entries of logs by key: {number of the first, bytes, ms to live; nil: as long as
-- before}), and TTLs: longest (µs, what the hashes must outlive), lives (µs, what strings must outlive; of others the TTL
-- stays). A TTL is given a quarter more than is needed, and the second that a life is rounded up to.
local bucket = 0
argument = 2
for h = 1, hashes do
  local fields = unpack_binary("B", request, 5 + h)
  -- Made for eight arguments at once: growing a table is dear.
  local sets, n, added = {false, false, false, false, false, false, false, false}, 0, false
  for i = 1, fields - 1 do
    local value = drafts[bucket + i]
    if value then
      sets[n + 1], sets[n + 2], n = ARGV[argument + i - 1], value, n + 2
      added = added or not values[bucket + i]
    end
  end
  bucket, argument = bucket + fields, argument + fields
  if n > 0 then
    local key, life = KEYS[h], values[bucket]
    life = life and #life == 4 and unpack_binary("<I4", life) or 0
    local extended = longest > life * 1000000
    if extended then
      life = ceil((longest + (longest - now) / 4) / 1000000)
      sets[n + 1], sets[n + 2], n = ":", pack("<I4", life < FOREVER and life or FOREVER), n + 2
    end
    redis.call("HSET", key, unpack(sets, 1, n))
    if extended then redis.call("PEXPIRE", key, ceil(life * 1000 - now / 1000)) end
    if added and values[bucket] then
      -- Whoever adds a field sweeps others. The hash has as many as a tenant has used of late, however many there are.
      -- What means nothing since an hour goes: a clock that steps back by less finds all that it should.
      local some, idle = redis.call("HRANDFIELD", key, 16, "WITHVALUES"), {}
      for i = 1, #some, 2 do
        local value = some[i + 1]
        if #value >= 29 and unpack_binary("<I7", value, 2) <= now - 3600000000 then idle[#idle + 1] = some[i] end
      end
      if #idle > 0 then redis.call("HDEL", key, unpack(idle)) end
    end
  end
end
for i = 1, strings do
  local value = drafts[first_string + i]
  if value then
    local life = lives and lives[first_string + i]
    if life then
      life = ceil((life + (life - now) / 4) / 1000000) * 1000 - now / 1000
      redis.call("SET", KEYS[hashes + i], value, "PX", ceil(life))
    else
      redis.call("SET", KEYS[hashes + i], value, "KEEPTTL")
    end
  end
end
for key, tail in pairs(tails) do
  if tail[1] > 0 then
    redis.call("SETRANGE", key, tail[1] * 14, tail[2])
    if tail[3] then redis.call("PEXPIRE", key, tail[3]) end
  elseif tail[3] then
    redis.call("SET", key, tail[2], "PX", tail[3])
  else
    redis.call("SET", key, tail[2], "KEEPTTL")
  end
end
