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

--@ clock

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
          --@ state
          if place and #value > LONG then
            if runs and runs[ran - 2] == subject and runs[ran] == place - 1 then
              runs[ran] = place + 36
            else
              runs, ran = runs or {false, false, false, false, false, false}, (ran or 0) + 3
              runs[ran - 2], runs[ran - 1], runs[ran] = subject, place, place + 36
            end
          end
          --@ convert
          local admits, expiry
          if kind == 1 then
            --@ token_bucket
          elseif kind == 3 then
            --@ fixed_window
          elseif kind == 4 then
            --@ sliding_window
          elseif kind == 5 then
            --@ sliding_log
          elseif kind == 7 then
            --@ concurrency
          else
            --@ calendar_window
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
            --@ patch
          end
        end
      end
      if denied or mode == 2 or unread then patched, tails, slots = 0, nil, nil end
    else
      settled = {}
      --@ settle
    end

    --@ write
    if not settled then
      --@ reply
    end
    replies[number] = settled or unread and redis.error_reply("NOPERM " .. unread) or values
  end
  key_offset = key_offset + own
end
return replies
