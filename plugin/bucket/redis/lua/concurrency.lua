-- Counts requests in flight. Each holds a slot until it is released (settle.lua) or until its deadline.
-- State: none in the subject's string. The slots are a sorted set of their own: ids of 14 bytes, by deadline (µs).
-- Those whose deadline is over count no more, and leave with the next one that is taken.
-- In: room (the most slots with which the request fits), cost (1 takes a slot, 0 only checks), a window (µs), b and c
-- the id of the slot, name (its first 2 bytes are the place of the slots' key among those of the request), denied,
-- record.
-- Out: admits, slots (fives of key, id, deadline, slots in all, ms to live), unread (the error of Redis, if it did not
-- read).
-- Reply: record, number of slots, the first deadline (µs; 0: there is none), 0, 0, lost (2: the key holds a foreign
-- type, and the bound is not decided) – all before a slot is taken.
-- Cost: one ZCOUNT, and one ZRANGE if there are slots. ZADD, ZCARD and PTTL if one is taken, and a PEXPIRE where the
-- TTL has become too short, and two ZREMRANGEBYSCORE where a deadline is over.
local key, from = keys[key_offset + unpack_binary("<I2", name)], string.format("(%.0f", now)
local latest = string.format("%.0f", now + AHEAD + MOST_SLOT) -- later ones were taken before the clock stepped back
local count, deadline, lost = redis.pcall("ZCOUNT", key, from, latest), 0, 0
if type(count) == "table" then
  if not find(count.err, "WRONGTYPE", 1, true) then unread = count.err end
  admits, count, lost = true, 0, 2
else
  if count > 0 then
    deadline = tonumber(redis.call("ZRANGE", key, from, latest, "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")[2])
  end
  for i = 1, slots and #slots or 0, 5 do -- of this request
    if slots[i] == key then
      count = count + 1
      if deadline == 0 or slots[i + 2] < deadline then deadline = slots[i + 2] end
    end
  end
  admits = count <= room
end
logs = logs or {}
local n = #logs
logs[n + 1], logs[n + 2], logs[n + 3], logs[n + 4], logs[n + 5], logs[n + 6] = record, count, deadline, 0, 0, lost
if admits and cost > 0 and not denied and lost == 0 then
  slots = slots or {}
  n = #slots
  slots[n + 1], slots[n + 2], slots[n + 3] = key, pack("<I7I7", b, c), now + a
  slots[n + 4], slots[n + 5] = count + 1, ceil(a / 1000) + 1000
end
cost = 0 -- nothing is spent in the subject's string
