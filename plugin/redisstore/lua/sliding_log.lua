-- Sliding logs. spent is the sum of the entries that count, at the latest instant that the log has seen, more the
-- instant of the last entry. A value has 15 bytes more: 4 head, 4 count, 7 forgotten, see log_entries.lua.
-- Parameters: hard, ask and cost in tokens, a window (µs), b the most that is remembered (tokens), c place of the
-- entries' key among KEYS.
-- Reply: record, spent, at (µs), last (µs), free (instant in µs from which ask would fit; 0 where it fits or never will),
-- lost (1: its entries were not where they belong, so it was read as empty) – before anything is spent.
-- Cost: one GETRANGE; for what expired or waits, another for each doubling of the entries passed over beyond 16. One
-- SETRANGE and PEXPIRE, or SET, if it is spent from. An entry takes 14 bytes, and goes when half of them have expired.
local window, keep, entries = a, b, KEYS[c]
local tail = tails[entries]
--@ log_entries
if type(chunk) == "table" then -- the key holds something that is not ours
  values[bucket], admits, cost = true, true, 0
else
  local seen = at > now and at or now
  if algorithm == 5 then
    at = seen
    if more <= at - window then
      head, count, forgotten, spent, more = 0, 0, 0, 0, 0
    else
      local eldest = first(head, count, 1, at - window)
      if eldest > head then
        local _, sum = entry(eldest - 1)
        if sum > forgotten then spent, forgotten = spent - (sum - forgotten), sum end
        head = eldest
      end
      entry(head)
    end
    if lost then head, count, forgotten, spent, more, tail = 0, 0, 0, 0, 0, nil end
  else
    if at <= seen - window then spent = 0 end
    if spent > 0 then
      count, more, tail = 1, at, {0, pack("<I7I7", at, spent)}
    end
    at = seen
  end
  admits = spent + ask <= hard
  local free = 0
  if not admits and ask <= hard then
    free = entry(first(head, count, 2, forgotten + spent + ask - hard - 1)) + window
  end
  logs = logs or {}
  local n = #logs
  logs[n + 1], logs[n + 2], logs[n + 3], logs[n + 4], logs[n + 5], logs[n + 6] = record, spent, at, more, free, lost and 1 or 0
  if admits and cost > 0 and not denied then
    local place = count
    if count > head and more >= at then -- of one instant there is one entry
      place = count - 1
    else
      count, more = count + 1, at
    end
    spent = spent + cost
    local sum = forgotten + spent
    if spent > keep then -- a log that never denies forgets the eldest beyond what it must remember
      forgotten, spent = sum - keep, keep
      head = first(head, place, 2, forgotten)
    end
    if place == 0 then
      tail = {0, ""}
    elseif not tail and head >= 256 and head * 2 > place then -- most of the string has expired
      tail = {0, redis.call("GETRANGE", entries, head * 14, place * 14 - 1)}
      place, count, head = place - head, count - head, 0
    elseif not tail then
      tail = {place, ""}
    end
    expiry = more + window
    tails[entries] = {
      tail[1], tail[2]:sub(1, (place - tail[1]) * 14) .. pack("<I7I7", more, sum), ceil((expiry - now) / 1000) + 1000,
    }
    suffix = pack("<I4I4I7", head, count, forgotten)
  end
end
