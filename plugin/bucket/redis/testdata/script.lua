-- Decides requests, one after the other: checks every bound of one, then spends all of the enforced ones or none. Mode
-- 1 settles what an earlier request has spent, mode 2 only shows the decision. Go's package limit is the reference
-- model of all arithmetic here.
--
-- This file is the frame. Each line "--@ name" is replaced by the file name.lua when the script is assembled, because a
-- function would be created anew for every call; testdata/script.lua is the result. So the files share their locals.
-- Each file says at its top which ones it reads (In) and sets (Out). These are the shared ones:
--
--   of all requests    keys (KEYS), replies, now and STEP_BACK (clock.lua)
--   of the request     number, request (its argument), key_offset (how many keys the requests before it have), own
--                      (how many it has), mode, subjects and records (numbers of them), enforced, p (place of the next
--                      record in request), values (of the subjects: a string, false or true)
--   of a record        kind (the limit's algorithm, with its tag until convert.lua has run), subject (its string, an
--                      index of values), name, room, cost, a, b, c (the algorithm's own parameters), shared (other
--                      records name its bucket too), value (of its string), guess (where in value the bucket may begin)
--   of a bucket        place (where in value it begins; nil: nowhere), stored (algorithm and tag of the limit that
--                      wrote it), algorithm, at, spent, more, mark: see Value below, and each algorithm's file for its
--                      meaning
--   of a decision      admits, expiry (the instant from which the state means no more than an empty one)
--   of a sliding log   entries (key), tail, tails, head, count, forgotten, lost, entry, first: see log_entries.lua
--   of what is written patches, patched, drafts, grown, last_subject, next_place (patch.lua), needs, tails, to_split
--                      (write.lua), slots (concurrency.lua)
--   of the reply       denials, logs, runs, ran, to_split (reply.lua), settled (settle.lua), unread (sliding_log.lua)
--
-- KEYS     of each request the subjects' strings, which hold buckets; then the entries of sliding logs and the slots of
--          concurrency limits. All in one slot. At level 0 a subject has one string, its head. At level n > 0 it has a
--          head, which holds the buckets without an endpoint, and 2^n chunks, of which those that the records need
--          follow the head: see split.lua.
-- ARGV     of each request, binary, little-endian, without gaps:
--            1 byte    mode: 0 take, 1 settle, 2 peek: a take that writes nothing
--            2 bytes   number of its keys
--            1 byte    number of subjects' strings
--            1 byte    number of records that enforce: they come first
--            1 byte    number of records
--            1 byte    for each string: its first byte, 16 × version + level; 128 more for a chunk, whose head is the
--                      last one before it
--            48 bytes  for each record of a take or a peek:
--              1 byte  kind: the algorithm whose state the limit keeps (1 token bucket, 3 fixed, 4 sliding window,
--                      5 sliding log, 6 calendar window, 7 concurrency), and 16 × the limit's tag
--              1 byte  string: its place among the subjects, from 1; 128 more when a bucket in it has several records
--              6 bytes the bucket's name; of concurrency the place of its slots' key: 2 bytes, and 4 without a meaning
--              5 doubles, all whole numbers: room (the most usage with which the request fits; 2^53: any), cost (what
--              is spent if it fits; 0 only checks), and a, b, c of the algorithm, see its file
--            72 bytes  for each record of a settlement, see settle.lua
--
-- Reply    an array of a reply to each request, which is an array:
--          of a take or a peek:
--            for each string its value before the request, of a long one only the buckets of the request. nil: there is
--            none; "": not of our form, read as empty; 1: the key holds a foreign type, and its bounds are not decided
--            now: Redis's clock, µs since the epoch
--            then, unless all of them are empty:
--            numbers of the records that deny; if one of them enforces, nothing was spent
--            of each record of a sliding log or a concurrency limit six integers, see its file
--            numbers of the strings that should be split
--
--          of a settlement: for each record how many units were returned; below 0: charged
--
--          of a take or a peek, if Redis denies to read a sliding log: an error. Nothing was spent for this request.
--
--          of either, if a head has another level than the request has: one array, the levels of the heads, and -1 for
--          each chunk. Then nothing was checked or spent for this request.
--
-- Value    of a string, binary, little-endian: 1 version and level, 4 life (the second since the epoch at which its key
--          expires), and for each bucket 37: 6 name, 1 algorithm + 16 × tag of the limit, 4 till (the second since the
--          epoch from which on it counts as empty), 7 at (µs), 7 spent, 6 more (a token bucket's units per token, a
--          sliding window's previous count, µs from a sliding log's last entry to at, µs of a calendar window's
--          period), 6 mark (see limit/refund.go). A tag is 4 bits of a token bucket's rate, a fixed window's length or
--          a calendar's definition, and 0 elsewhere: one other rate in 16 of the same base has it too, and a refund
--          then computes with the new rate. A value of another version or length, and a bucket with impossible
--          numbers, is read as empty.
--
-- Cost     TIME, and for each request one MGET, and a SETRANGE for each bucket that is spent from, or for several
--          neighbours. A SET for a new bucket, and when the TTL has become too short: then it gets a quarter to spare.
--          An EXISTS where a string is missing, and one for each that is missing if a key has a foreign type. A denial
--          and a peek write nothing.

local unpack_binary, pack, find = struct.unpack, struct.pack, string.find
local sub, byte, ceil = string.sub, string.byte, math.ceil
local MOST, EXACT = 4503599627370496, 9007199254740992 -- limit.MaxProduct = 2^52, and what a double counts exactly
local SPAN, MARKS = 16777216, 281474976710656 -- limit's markSpan = 2^24, and how many marks there are
local AHEAD = 3600000000 -- limit.StepBack
local FOREVER = 4294967295 -- the latest second that 4 bytes hold: later ones are stored as this
local MOST_SLOT = 86400000000 -- limit.MaxDuration
local LONG = 300 -- bytes of a value above which the reply has only parts of it, and writes drop what has expired
local FULL = 1189 -- bytes of a value with 32 buckets: larger ones are split
local keys, key_offset, replies = KEYS, 0, {}

-- Out: now (µs since the epoch by Redis's clock, the one clock of all nodes), STEP_BACK (limit.StepBack: how many µs it
-- may step back). Tests assemble the script with another clock.
local now, STEP_BACK = redis.call("TIME"), 3600000000 -- nothing is written yet
now = now[1] * 1000000 + now[2]

for number = 1, #ARGV do
  local request = ARGV[number]
  local mode, own, subjects, enforced, records = unpack_binary("<BI2BBB", request)
  local p = 7 + subjects -- of the first record

  -- values[i] is a string ("" is not of our form), false where there is none, or true where the key has a foreign type.
  -- Where the ACL denies this, it does so to the first request.
  local values = redis.call("MGET", unpack(keys, key_offset + 1, key_offset + subjects)) -- nothing is written yet
  local missing, levels = 0
  for i = 1, subjects do
    local value, first = values[i], byte(request, 6 + i)
    if not value then
      missing = missing + 1
      if first > 16 and first < 128 then levels = true end
    else
      local found = byte(value)
      local differs = found ~= first % 128
      if differs and first < 128 and found and found >= 16 and found < 32 then levels = true end
      if differs or #value % 37 ~= 5 then values[i] = "" end
    end
  end
  if levels then
    levels = {}
    for i = 1, subjects do
      local found = 0
      if byte(request, 6 + i) >= 128 then
        found = -1
      elseif values[i] then
        found = redis.call("GETRANGE", keys[key_offset + i], 0, 0)
        found = found ~= "" and byte(found) % 16 or 0
      end
      levels[i] = found
    end
    replies[number] = {levels}
  else
    local strings = subjects - missing
    if missing > 0 and redis.call("EXISTS", unpack(keys, key_offset + 1, key_offset + subjects)) > strings then
      for i = 1, subjects do
        if not values[i] and redis.call("EXISTS", keys[key_offset + i]) == 1 then values[i] = true end
      end
    end

    -- What is written if no enforced record denies. Tables are made as large as they commonly get: growing is slow.
    local patches = {false, false, false, false, false, false, false, false, false, false, false, false}
    local patched = 0
    local needs = {false, false, false, false} -- by subject: the instant (µs) that its string must outlive
    local last_subject, next_place, drafts, grown, tails, to_split -- see patch.lua, sliding_log.lua, write.lua
    local slots
    local denials, logs, settled, unread
    local runs, ran -- see reply.lua

    if mode ~= 1 then
      local denied = false
      for record = 1, records do
        if denied and record == enforced + 1 then drafts, tails, slots = nil, nil, nil end
        local kind, subject, name, room, cost, a, b, c
        kind, subject, name, room, cost, a, b, c, p = unpack_binary("<BBc6ddddd", request, p)
        local shared = subject > 128
        if shared then subject = subject - 128 end
        local value = drafts and drafts[subject] or values[subject]
        local guess = 6
        if subject == last_subject then guess = next_place end
        if value ~= true then
-- Reads the state of a bucket from its string.
-- In: value (of the string, or false), name, guess. Out: value (false unless it is of our form), place, stored,
-- algorithm (0: the bucket is empty: new, past its till, or ahead of the clock by more than it may step back), at,
-- spent, more, mark.
local place
local stored, algorithm, at, spent, more, mark = 0, 0, now, 0, 0, 0
if value then
  local size = #value
  if size > 0 then
    local there, till
    -- Buckets mostly lie in the order of the records; the first one of a long value is rarely right.
    if size >= guess + 36 and (guess > 6 or size <= LONG) then
      there, stored, till, at, spent, more, mark = unpack_binary("<c6BI4I7I7I6I6", value, guess)
    end
    if there == name then
      place = guess
    else
      place = find(value, name, 6, true)
      while place and place % 37 ~= 6 do place = find(value, name, place + 1, true) end
      if place then stored, till, at, spent, more, mark = unpack_binary("<BI4I7I7I6I6", value, place + 6) end
    end
    algorithm = stored % 16
    if not place or till * 1000000 <= now and till < FOREVER or algorithm == 0 or algorithm == 2 or algorithm > 6
      or algorithm == 1 and more == 0 or algorithm == 5 and more > at or spent > EXACT or at > EXACT
      or at > now + AHEAD or algorithm == 6 and at + more <= now then
      stored, algorithm, at, spent, more = 0, 0, now, 0, 0
    end
  else
    value = false
  end
end
if algorithm == 0 then
  mark = (now - now % 256) / 256 % SPAN * SPAN
elseif algorithm == 5 then
  more = spent > 0 and at - more or 0 -- the instant of the last entry
end
          if place and #value > LONG then
            if runs and runs[ran - 2] == subject and runs[ran] == place - 1 then
              runs[ran] = place + 36
            else
              runs, ran = runs or {false, false, false, false, false, false}, (ran or 0) + 3
              runs[ran - 2], runs[ran - 1], runs[ran] = subject, place, place + 36
            end
          end
-- Converts the state of a bucket that another limit wrote: what it counts is spent at one instant here.
-- In: kind with the tag, stored, algorithm, at, spent, more, mark, b. Out: wanted (kind with the tag), kind without it,
-- at, spent, more, mark. The fraction of another base is left to token_bucket.lua.
local wanted = kind
kind = kind % 16
if stored ~= wanted then
  if algorithm > 0 then mark = (mark + SPAN) % MARKS end
  if algorithm ~= kind then
    if algorithm == 1 then
      spent = ceil(spent / more)
    else
      at = algorithm == 5 and spent > 0 and more or now
    end
    if spent > MOST then spent = MOST end
    more = 0
  end
elseif kind == 1 and more ~= b then
  mark = (mark + SPAN) % MARKS
end
          local admits, expiry
          if kind == 1 then
-- Counts in token and leaky buckets.
-- State: at, spent (the debt at that instant, in units of 1/base token), more (the base).
-- In: room (units; 2^52 more than the capacity if the request always fits) and cost (units), a rate (units per tick),
-- b base (units per token), c tick (µs). Out: admits, expiry.
-- Cost: no command.
local rate, base, tick = a, b, c
local most = rate * ((MOST - MOST % tick) / tick) -- the largest debt: no wait exceeds 2^52 µs
if most > MOST then most = MOST end
if algorithm ~= 1 or more ~= base then -- whole tokens are kept, a fraction counts as one
  if algorithm == 1 then spent = ceil(spent / more) else at = at - at % tick end
  local tokens = (most - most % base) / base
  if spent > tokens then spent = tokens end
  spent, more = spent * base, base
end
if spent > most then spent = most end
local elapsed
if tick == 1 then
  elapsed = now - at
else
  local off = at % tick
  if off > 0 then at = at + tick - off end -- written in finer ticks: rounded up, so that no refill counts twice
  elapsed = now - now % tick - at
end
if elapsed > 0 then -- a clock that steps back refills nothing
  local refill = elapsed / tick * rate
  if refill >= spent then spent = 0 else spent = spent - refill end
  at = at + elapsed
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  -- A limit that never denies remembers no more than its capacity, which is in its room.
  if room > MOST and spent > room - MOST then spent = room - MOST end
  expiry = at + (spent + -spent % rate) / rate * tick -- full again; a quotient rounded up without a function
end
          elseif kind == 3 then
-- Counts in fixed windows, aligned to the epoch.
-- State: at (start of the window), spent (tokens in it).
-- In: room and cost in tokens, a window (µs). Out: admits, expiry.
-- Cost: no command.
local window = a
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then at, spent, mark = start, 0, (mark + SPAN) % MARKS end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + window
end
more = 0
          elseif kind == 4 then
-- Counts in sliding windows, by the two-window approximation.
-- State: at (start of the window), spent (tokens in it), more (tokens in the window before).
-- In: room in units of 1/ticks token, cost in tokens, a window (µs), b ticks (the window in ticks), c tick (µs).
-- Out: admits, expiry.
-- Cost: no command.
local window, ticks, tick = a, b, c
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then
  more = start == at + window and spent or 0
  at, spent, mark = start, 0, (mark + SPAN) % MARKS
end
local most = (MOST - MOST % ticks) / ticks
if most > 281474976710655 then most = 281474976710655 end -- what 6 bytes hold
if more > most then more = most end
local current = spent < most and spent or most
local elapsed = 0
if now > at then
  elapsed = now - at
  elapsed = (elapsed - elapsed % tick) / tick
end
admits = more * (ticks - elapsed) + current * ticks <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + 2 * window -- it counts in the next window too
end
          elseif kind == 5 then
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
-- Reads the entries of a sliding log, which are a string of their own. It begins with 15 bytes: 4 head, 4 count,
-- 7 forgotten. Then follow 14 bytes for each admission in the order of time: 7 instant (µs), 7 the sum of all costs up
-- to this one, it included. With sums a search answers how much has expired and when there is room.
--
-- In: algorithm, spent, entries (key), tail (what this request has changed: {number of its first entry, bytes, header,
-- ms to live}, or nil).
-- Out: head and count (numbers of the oldest entry that counts, and of the next one), forgotten (the sum before head),
-- chunk (a table if the key holds a foreign type), entry(i) → instant and sum, first(low, stop, column, value) → number
-- of the first entry from low on whose column (1 instant, 2 sum) is above value, or stop; lost (an entry is missing).
local head, count, forgotten, lost = 0, 0, 0, false
local from, chunk = 0, redis.pcall("GETRANGE", entries, 0, 238) -- with the first 16
if tail then
  head, count, forgotten = unpack_binary("<I4I4I7", tail[3])
elseif algorithm == 5 and type(chunk) == "string" then
  if #chunk < 15 then
    lost = true
  else
    head, count, forgotten = unpack_binary("<I4I4I7", chunk)
    lost = head > count or head == count and spent > 0 or count > 1000000 or forgotten > EXACT -- no log is so long
  end
end
if type(chunk) == "string" then chunk = sub(chunk, 16) end
local function entry(i)
  local start, bytes = from, chunk
  if tail and i >= tail[1] then
    start, bytes = tail[1], tail[2]
  elseif i < from or i >= from + 16 then
    from, chunk = i, redis.call("GETRANGE", entries, 15 + i * 14, 238 + i * 14)
    start, bytes = from, chunk
  end
  if #bytes < (i - start + 1) * 14 then
    lost = true
    return 0, 0
  end
  return unpack_binary("<I7I7", bytes, (i - start) * 14 + 1)
end
local function first(low, stop, column, value)
  local high, step = low, 1
  while high < stop and not lost do -- most searches end near where they begin
    if select(column, entry(high)) > value then break end
    low, high, step = high + 1, high + step, step * 2
  end
  if high > stop then high = stop end
  while low < high and not lost do
    local middle = ceil((low + high - 1) / 2)
    if select(column, entry(middle)) > value then high = middle else low = middle + 1 end
  end
  return low
end
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
          elseif kind == 7 then
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
          else
-- Counts in the periods of a calendar: days, weeks, months, quarters or years of a time zone.
-- State: at (start of the period), spent (tokens in it), more (its length, µs). It counts until at + more: state.lua
-- reads it as empty from then on.
-- In: room and cost in tokens; of the period that contains the node's now: a its start (µs), b its end, c the length
-- of the period before it (s) × 2^25 + the length of the one after it (s). Out: admits, expiry.
-- Cost: no command.
local start, length = a, b - a
if now >= b then
  length = c % 33554432 * 1000000
  start = now - (now - b) % length
elseif now < a then
  length = (c - c % 33554432) / 33554432 * 1000000
  start = now - (now - a) % length
end
if stored ~= wanted or start == at then -- what another limit counted is carried over
  at, more = start, length
elseif start > at then -- by other zone data: the next period if it begins where the state's ends, else the same one
  if at + more - start <= 10800000000 then spent = 0 end
  at, more, mark = start, length, (mark + SPAN) % MARKS
elseif start + length > at + more then -- an earlier one by other zone data
  more = start + length - at
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + more
end
          end
          if not admits then
            if record <= enforced then denied = true end
            denials = denials or {}
            denials[#denials + 1] = record
          elseif cost > 0 and not denied then
            if not needs[subject] or expiry > needs[subject] then needs[subject] = expiry end
            local till = ceil(expiry / 1000000)
            if till > FOREVER then till = FOREVER end
            local state = pack("<BI4I7I7I6I6", wanted, till, at, spent, kind == 5 and 0 or more, mark)
-- Records the new state of a bucket, to be written in the end.
-- In: subject, shared, value, name, place, state (31 bytes). Out: patches and patched (threes of subject, offset,
-- bytes), drafts (values with the states of this request, by subject), grown (subjects with a new bucket),
-- last_subject, next_place.
if shared or not place then -- another record of the request may name it again
  drafts = drafts or {false, false, false, false}
  if place then
    drafts[subject] = sub(value, 1, place + 5) .. state .. sub(value, place + 37)
  else
    value = value or pack("<BI4", byte(request, 6 + subject) % 128, 0)
    drafts[subject], place, grown = value .. name .. state, #value + 1, grown or {false, false, false, false}
    grown[subject] = true
  end
end
if last_subject == subject and next_place == place then -- neighbours are written together
  patches[patched] = patches[patched] .. name .. state
else
  patches[patched + 1], patches[patched + 2], patches[patched + 3], patched = subject, place + 5, state, patched + 3
end
last_subject, next_place = subject, place + 37
          end
        end
      end
      if denied or mode == 2 or unread then patched, tails, slots = 0, nil, nil end
    else
      settled = {}
-- Settles what an earlier request has spent: returns a part of it, or charges more. Each record settles one bucket:
--   1 byte, 1 byte, 6 bytes as for a take
--   8 doubles, all whole numbers:
--   cost   what to return (units of the algorithm); below 0: what to charge. A slot is released whatever it is
--   taken  the bucket's instant right after the take (µs; a window's start; of a log, the instant of its entry; of a
--          slot, its deadline)
--   debt   what the bucket counted as spent right after the take; of a charge: the most that it may leave
--   was    its mark at the take; of a slot, debt and was are its id
--   a b c  as for a take
--   step   of a token bucket: the ticks that refill a token, rounded up
-- Out: settled (units, by record).
-- Cost: as a take, see refund.lua and charge.lua; of a slot one ZREM.
for record = 1, records do
  local kind, subject, name, cost, taken, debt, was, a, b, c, step
  kind, subject, name, cost, taken, debt, was, a, b, c, step, p = unpack_binary("<BBc6dddddddd", request, p)
  local shared = subject > 128
  if shared then subject = subject - 128 end
  local value, back, guess = drafts and drafts[subject] or values[subject], 0, 6
  if kind == 7 then
    if taken > now then -- else it is free already; the key may have a foreign type
      back = redis.pcall("ZREM", keys[key_offset + unpack_binary("<I2", name)], pack("<I7I7", debt, was))
      if type(back) == "table" then back = 0 end
    end
  elseif value ~= true then
-- Reads the state of a bucket from its string.
-- In: value (of the string, or false), name, guess. Out: value (false unless it is of our form), place, stored,
-- algorithm (0: the bucket is empty: new, past its till, or ahead of the clock by more than it may step back), at,
-- spent, more, mark.
local place
local stored, algorithm, at, spent, more, mark = 0, 0, now, 0, 0, 0
if value then
  local size = #value
  if size > 0 then
    local there, till
    -- Buckets mostly lie in the order of the records; the first one of a long value is rarely right.
    if size >= guess + 36 and (guess > 6 or size <= LONG) then
      there, stored, till, at, spent, more, mark = unpack_binary("<c6BI4I7I7I6I6", value, guess)
    end
    if there == name then
      place = guess
    else
      place = find(value, name, 6, true)
      while place and place % 37 ~= 6 do place = find(value, name, place + 1, true) end
      if place then stored, till, at, spent, more, mark = unpack_binary("<BI4I7I7I6I6", value, place + 6) end
    end
    algorithm = stored % 16
    if not place or till * 1000000 <= now and till < FOREVER or algorithm == 0 or algorithm == 2 or algorithm > 6
      or algorithm == 1 and more == 0 or algorithm == 5 and more > at or spent > EXACT or at > EXACT
      or at > now + AHEAD or algorithm == 6 and at + more <= now then
      stored, algorithm, at, spent, more = 0, 0, now, 0, 0
    end
  else
    value = false
  end
end
if algorithm == 0 then
  mark = (now - now % 256) / 256 % SPAN * SPAN
elseif algorithm == 5 then
  more = spent > 0 and at - more or 0 -- the instant of the last entry
end
    local state
    if cost > 0 then
-- Returns what an earlier request has spent, as far as it is certain that no limit admits more for it. What is doubtful
-- stays spent; limit/refund.go has the proof.
-- In: the numbers of a record of settle.lua, the state. Out: back (units that are returned), the state without them.
-- Cost: no command. Of a sliding log one GETRANGE or two; two SETRANGE or a SET follow.
local since = (mark - was) % MARKS
local same = stored == kind
kind = kind % 16
if not same then
  back = 0
elseif kind == 4 and since == SPAN and at == taken + a then
  back = cost < more and cost or more
  more = more - back
elseif since >= SPAN then
  back = 0
elseif kind == 1 then
  if more == b and at >= taken then
    local room, expiry, admits = -1
    local spends = cost
    cost = 0
-- Counts in token and leaky buckets.
-- State: at, spent (the debt at that instant, in units of 1/base token), more (the base).
-- In: room (units; 2^52 more than the capacity if the request always fits) and cost (units), a rate (units per tick),
-- b base (units per token), c tick (µs). Out: admits, expiry.
-- Cost: no command.
local rate, base, tick = a, b, c
local most = rate * ((MOST - MOST % tick) / tick) -- the largest debt: no wait exceeds 2^52 µs
if most > MOST then most = MOST end
if algorithm ~= 1 or more ~= base then -- whole tokens are kept, a fraction counts as one
  if algorithm == 1 then spent = ceil(spent / more) else at = at - at % tick end
  local tokens = (most - most % base) / base
  if spent > tokens then spent = tokens end
  spent, more = spent * base, base
end
if spent > most then spent = most end
local elapsed
if tick == 1 then
  elapsed = now - at
else
  local off = at % tick
  if off > 0 then at = at + tick - off end -- written in finer ticks: rounded up, so that no refill counts twice
  elapsed = now - now % tick - at
end
if elapsed > 0 then -- a clock that steps back refills nothing
  local refill = elapsed / tick * rate
  if refill >= spent then spent = 0 else spent = spent - refill end
  at = at + elapsed
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  -- A limit that never denies remembers no more than its capacity, which is in its room.
  if room > MOST and spent > room - MOST then spent = room - MOST end
  expiry = at + (spent + -spent % rate) / rate * tick -- full again; a quotient rounded up without a function
end
    cost = spends
    -- Without the request the bucket was not full before so many ticks. From then on a tick's refill may be lost.
    local left = debt > cost and debt - cost or 0
    left = (left - left % rate) / rate - since * step
    local lost = (at - taken) / tick - (left > 0 and left or 0)
    back = cost
    if lost > 0 then back = cost - lost * rate end
    if back > spent then back = spent end
    if back > 0 then
      spent = spent - back
      local ticks = (back + -back % rate) / rate
      mark = (mark + (ticks + -ticks % step) / step) % MARKS
    else
      back = 0
    end
  end
elseif kind == 5 then
  local entries = keys[key_offset + c]
  local tail = tails and tails[entries]
-- Reads the entries of a sliding log, which are a string of their own. It begins with 15 bytes: 4 head, 4 count,
-- 7 forgotten. Then follow 14 bytes for each admission in the order of time: 7 instant (µs), 7 the sum of all costs up
-- to this one, it included. With sums a search answers how much has expired and when there is room.
--
-- In: algorithm, spent, entries (key), tail (what this request has changed: {number of its first entry, bytes, header,
-- ms to live}, or nil).
-- Out: head and count (numbers of the oldest entry that counts, and of the next one), forgotten (the sum before head),
-- chunk (a table if the key holds a foreign type), entry(i) → instant and sum, first(low, stop, column, value) → number
-- of the first entry from low on whose column (1 instant, 2 sum) is above value, or stop; lost (an entry is missing).
local head, count, forgotten, lost = 0, 0, 0, false
local from, chunk = 0, redis.pcall("GETRANGE", entries, 0, 238) -- with the first 16
if tail then
  head, count, forgotten = unpack_binary("<I4I4I7", tail[3])
elseif algorithm == 5 and type(chunk) == "string" then
  if #chunk < 15 then
    lost = true
  else
    head, count, forgotten = unpack_binary("<I4I4I7", chunk)
    lost = head > count or head == count and spent > 0 or count > 1000000 or forgotten > EXACT -- no log is so long
  end
end
if type(chunk) == "string" then chunk = sub(chunk, 16) end
local function entry(i)
  local start, bytes = from, chunk
  if tail and i >= tail[1] then
    start, bytes = tail[1], tail[2]
  elseif i < from or i >= from + 16 then
    from, chunk = i, redis.call("GETRANGE", entries, 15 + i * 14, 238 + i * 14)
    start, bytes = from, chunk
  end
  if #bytes < (i - start + 1) * 14 then
    lost = true
    return 0, 0
  end
  return unpack_binary("<I7I7", bytes, (i - start) * 14 + 1)
end
local function first(low, stop, column, value)
  local high, step = low, 1
  while high < stop and not lost do -- most searches end near where they begin
    if select(column, entry(high)) > value then break end
    low, high, step = high + 1, high + step, step * 2
  end
  if high > stop then high = stop end
  while low < high and not lost do
    local middle = ceil((low + high - 1) / 2)
    if select(column, entry(middle)) > value then high = middle else low = middle + 1 end
  end
  return low
end
  if type(chunk) ~= "table" then
    local i = first(head, count, 1, taken - 1)
    local before = forgotten
    if i > head then before = select(2, entry(i - 1)) end
    if before < forgotten then before = forgotten end
    if i < count and count - i <= 64 then -- later sums change too, so only a recent entry is worth it
      local instant, sum = entry(i)
      if instant == taken and sum - before >= cost then
        local bytes, later = "", i
        if sum - before == cost then later = i + 1 end -- nothing is left of the entry: it is removed
        for j = later, count - 1 do
          instant, sum = entry(j)
          bytes = bytes .. pack("<I7I7", instant, sum - cost)
        end
        count = count - (later - i)
        if count == i and i > head then more = entry(i - 1) end
        if not lost then
          back, spent = cost, spent - cost
          if tail and tail[1] < i then
            i, bytes = tail[1], sub(tail[2], 1, (i - tail[1]) * 14) .. bytes
          end
          tails = tails or {}
          tails[entries] = {i, bytes, pack("<I4I4I7", head, count, forgotten)}
        end
      end
    end
  end
else
  back = cost < spent and cost or spent
  spent = spent - back
end
      if back > 0 then -- till stays, which is later than needed, and the string lives long enough
        if kind == 5 then more = spent > 0 and at - more or 0 end
        needs[subject], state = needs[subject] or 0, sub(value, place + 6, place + 10)
      end
    elseif cost < 0 then
      local expiry
-- Charges what a request cost beyond what it had reserved, whether or not there is room.
-- In: the numbers of a record of settle.lua, the state. Out: back (minus the units that are charged), the state with
-- them, wanted, expiry.
-- Cost: no command.
local changed = algorithm > 0 and (stored ~= kind or kind % 16 == 1 and more ~= b) -- by another limit since the take
-- Converts the state of a bucket that another limit wrote: what it counts is spent at one instant here.
-- In: kind with the tag, stored, algorithm, at, spent, more, mark, b. Out: wanted (kind with the tag), kind without it,
-- at, spent, more, mark. The fraction of another base is left to token_bucket.lua.
local wanted = kind
kind = kind % 16
if stored ~= wanted then
  if algorithm > 0 then mark = (mark + SPAN) % MARKS end
  if algorithm ~= kind then
    if algorithm == 1 then
      spent = ceil(spent / more)
    else
      at = algorithm == 5 and spent > 0 and more or now
    end
    if spent > MOST then spent = MOST end
    more = 0
  end
elseif kind == 1 and more ~= b then
  mark = (mark + SPAN) % MARKS
end
if not changed and (kind == 1 or kind == 3 or kind == 6) then -- others would count it at the wrong instant
  local room, admits = -1 -- the algorithm's file brings the state to now, and spends nothing
  if kind == 1 then
-- Counts in token and leaky buckets.
-- State: at, spent (the debt at that instant, in units of 1/base token), more (the base).
-- In: room (units; 2^52 more than the capacity if the request always fits) and cost (units), a rate (units per tick),
-- b base (units per token), c tick (µs). Out: admits, expiry.
-- Cost: no command.
local rate, base, tick = a, b, c
local most = rate * ((MOST - MOST % tick) / tick) -- the largest debt: no wait exceeds 2^52 µs
if most > MOST then most = MOST end
if algorithm ~= 1 or more ~= base then -- whole tokens are kept, a fraction counts as one
  if algorithm == 1 then spent = ceil(spent / more) else at = at - at % tick end
  local tokens = (most - most % base) / base
  if spent > tokens then spent = tokens end
  spent, more = spent * base, base
end
if spent > most then spent = most end
local elapsed
if tick == 1 then
  elapsed = now - at
else
  local off = at % tick
  if off > 0 then at = at + tick - off end -- written in finer ticks: rounded up, so that no refill counts twice
  elapsed = now - now % tick - at
end
if elapsed > 0 then -- a clock that steps back refills nothing
  local refill = elapsed / tick * rate
  if refill >= spent then spent = 0 else spent = spent - refill end
  at = at + elapsed
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  -- A limit that never denies remembers no more than its capacity, which is in its room.
  if room > MOST and spent > room - MOST then spent = room - MOST end
  expiry = at + (spent + -spent % rate) / rate * tick -- full again; a quotient rounded up without a function
end
  elseif kind == 3 then
-- Counts in fixed windows, aligned to the epoch.
-- State: at (start of the window), spent (tokens in it).
-- In: room and cost in tokens, a window (µs). Out: admits, expiry.
-- Cost: no command.
local window = a
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then at, spent, mark = start, 0, (mark + SPAN) % MARKS end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + window
end
more = 0
  else
-- Counts in the periods of a calendar: days, weeks, months, quarters or years of a time zone.
-- State: at (start of the period), spent (tokens in it), more (its length, µs). It counts until at + more: state.lua
-- reads it as empty from then on.
-- In: room and cost in tokens; of the period that contains the node's now: a its start (µs), b its end, c the length
-- of the period before it (s) × 2^25 + the length of the one after it (s). Out: admits, expiry.
-- Cost: no command.
local start, length = a, b - a
if now >= b then
  length = c % 33554432 * 1000000
  start = now - (now - b) % length
elseif now < a then
  length = (c - c % 33554432) / 33554432 * 1000000
  start = now - (now - a) % length
end
if stored ~= wanted or start == at then -- what another limit counted is carried over
  at, more = start, length
elseif start > at then -- by other zone data: the next period if it begins where the state's ends, else the same one
  if at + more - start <= 10800000000 then spent = 0 end
  at, more, mark = start, length, (mark + SPAN) % MARKS
elseif start + length > at + more then -- an earlier one by other zone data
  more = start + length - at
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + more
end
  end
  local units = debt - spent < -cost and debt - spent or -cost
  if units > 0 then
    spent, back = spent + units, -units
    if kind == 1 then
      expiry = at + (spent + -spent % a) / a * c
    else
      expiry = at + (kind == 3 and a or more)
    end
  end
end
      if back < 0 then
        if not needs[subject] or expiry > needs[subject] then needs[subject] = expiry end
        local till = ceil(expiry / 1000000)
        if till > FOREVER then till = FOREVER end
        state = pack("<BI4", wanted, till)
      end
    end
    if state then
      state = state .. pack("<I7I7I6I6", at, spent, more, mark)
-- Records the new state of a bucket, to be written in the end.
-- In: subject, shared, value, name, place, state (31 bytes). Out: patches and patched (threes of subject, offset,
-- bytes), drafts (values with the states of this request, by subject), grown (subjects with a new bucket),
-- last_subject, next_place.
if shared or not place then -- another record of the request may name it again
  drafts = drafts or {false, false, false, false}
  if place then
    drafts[subject] = sub(value, 1, place + 5) .. state .. sub(value, place + 37)
  else
    value = value or pack("<BI4", byte(request, 6 + subject) % 128, 0)
    drafts[subject], place, grown = value .. name .. state, #value + 1, grown or {false, false, false, false}
    grown[subject] = true
  end
end
if last_subject == subject and next_place == place then -- neighbours are written together
  patches[patched] = patches[patched] .. name .. state
else
  patches[patched + 1], patches[patched + 2], patches[patched + 3], patched = subject, place + 5, state, patched + 3
end
last_subject, next_place = subject, place + 37
    end
  end
  settled[record] = back
end
    end

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
    if not settled then
-- Makes the reply to a take from values. Of a long value it has the first 5 bytes and the buckets of the records.
-- In: values, runs (where neighbours among those buckets lie, in threes of subject, first and last byte), ran (the
-- length of runs), denials, logs, to_split.
for i = 1, subjects do
  local value = values[i]
  if value and value ~= true and #value > LONG then
    local named = sub(value, 1, 5)
    for run = 1, ran or 0, 3 do
      if runs[run] == i then named = named .. sub(value, runs[run + 1], runs[run + 2]) end -- without what is new
    end
    values[i] = named
  end
end
values[subjects + 1] = now
if denials or logs or to_split then
  values[subjects + 2], values[subjects + 3] = denials or false, logs or false
  if to_split then values[subjects + 4] = to_split end
end
    end
    replies[number] = settled or unread and redis.error_reply("NOPERM " .. unread) or values
  end
  key_offset = key_offset + own
end
return replies
