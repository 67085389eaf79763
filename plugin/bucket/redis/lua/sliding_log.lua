-- Counts every admission of the last window.
-- State: at (the latest instant that the log has seen), spent (tokens of the entries that count), more (the instant of
-- the last entry, which is stored as µs before at). The entries are a string of their own, see log_entries.lua.
-- In: room and cost in tokens, a window (µs), b the most tokens that are remembered, c place of the entries' key among
-- those of the request, denied, record. Out: admits, expiry, tails, unread (the error of Redis, if it did not read).
-- Reply: record, spent, at (µs), last (µs), free (instant in µs from which it would fit; 0 where it fits or never
-- will), lost (1: its entries were missing or of another log, so it was read as empty; 2: their key holds a foreign
-- type, and the bound is not decided) – all before anything is spent.
-- Cost: one GETRANGE, and for what expired or waits another for each doubling of the entries passed over beyond 16. Two
-- SETRANGE and a PEXPIRE, or a SET, if it is spent from. An entry takes 14 bytes, until half of them have expired.
local window, keep, entries = a, b, keys[key_offset + c]
local tail = algorithm == 5 and tails and tails[entries] or nil
local free = 0
--@ log_entries
if type(chunk) == "table" then -- the key holds a foreign type, or the ACL denies to read it
  if not find(chunk.err, "WRONGTYPE", 1, true) then unread = chunk.err end
  admits, cost, lost = true, 0, 2
else
  local seen = at > now and at or now
  if algorithm == 5 then
    at = seen
    if more <= at - window then
      head, count, forgotten, spent, more = 0, 0, 0, 0, 0
    else
      local oldest = first(head, count, 1, at - window)
      if oldest > head then
        local _, sum = entry(oldest - 1)
        if sum > forgotten then spent, forgotten = spent - (sum - forgotten), sum end
        head = oldest
      end
      entry(head)
    end
  else
    if at <= seen - window then spent = 0 end
    if spent > 0 then
      count, more, tail = 1, at, {0, pack("<I7I7", at, spent)}
    end
    at = seen
  end
  admits = spent <= room
  if not admits and room >= 0 then
    free = entry(first(head, count, 2, forgotten + spent - room - 1)) + window
  end
  if lost or free > 0 and free <= now then -- the entries are not those of this log
    head, count, forgotten, spent, more, tail, free, lost = 0, 0, 0, 0, 0, nil, 0, 1
    admits = spent <= room
  end
end
logs = logs or {}
local n = #logs
logs[n + 1], logs[n + 2], logs[n + 3], logs[n + 4], logs[n + 5], logs[n + 6] = record, spent, at, more, free, lost or 0
if admits and cost > 0 and not denied then
  local place = count
  if count > head and more >= at then -- an instant has one entry
    place = count - 1
  else
    count, more = count + 1, at
  end
  spent = spent + cost
  local total = forgotten + spent
  if spent > keep then -- a log that never denies drops the oldest beyond what it must remember
    forgotten, spent = total - keep, keep
    head = first(head, place, 2, forgotten)
  end
  if place == 0 then
    tail = {0, ""}
  elseif not tail and head >= 64 and head * 2 > place then -- most of the string has expired
    tail = {0, redis.call("GETRANGE", entries, 15 + head * 14, 14 + place * 14)}
    place, count, head = place - head, count - head, 0
  elseif not tail then
    tail = {place, ""}
  end
  expiry = more + window
  tails = tails or {}
  tails[entries] = {
    tail[1],
    sub(tail[2], 1, (place - tail[1]) * 14) .. pack("<I7I7", more, total),
    pack("<I4I4I7", head, count, forgotten),
    ceil((expiry - now) / 1000) + 1000,
  }
end
