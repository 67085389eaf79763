-- One request: ask every bound, then spend all of the enforced ones, or none. Mode 1 gives back what an earlier request
-- has spent. Go's package limit is the reference model of all arithmetic here.
--
-- This file is the frame. The lines that begin with "--@" are replaced by the file of that name when the script is
-- assembled; text is cheaper than functions, which Redis would have to create anew for every call.
--
-- KEYS     the subjects: strings that hold buckets. Then the entries of sliding logs. All in one slot. A subject is a
--          head that holds all of its buckets (level 0), or a head that holds those without an endpoint, followed by those
--          of its chunks that the records need: at level n there are 2^n, see split.lua.
-- ARGV[1]  binary, little-endian, without gaps:
--            1 byte    mode: 0 take, 1 refund
--            1 byte    number of subjects' strings
--            1 byte    number of records that enforce: they come first
--            1 byte    number of records
--            1 byte    for each string: the byte that it must begin with: 16 × version + level; 128 more for a chunk,
--                      whose head is the last before it
--            48 bytes  for each record of a take:
--              1 byte  kind: the algorithm whose state the limit keeps (1 token bucket, 3 fixed, 4 sliding window, 5 log);
--                      16 × the limit's tag more
--              1 byte  string: its place among KEYS, from 1; 128 more when a bucket of it has several records
--              6 bytes the bucket's name
--              5 doubles, all whole numbers: room (the most usage with which the request fits; 2^53: it always does), cost
--              (what is spent if it fits; 0 only asks), and three of the algorithm's own, see its file.
--            72 bytes  for each record of a refund, see refund.lua
--
-- Reply    of a take, for each string its value before the request, of a long one only the buckets that were asked for.
--          nil: not there; "": not of our form, read as empty; 1: the key holds something that is not ours, and whatever
--          wants it is left out of the decision
--          now: Redis's clock, µs since the epoch
--          three arrays, if there is anything to say in one of them:
--          numbers of the records that refuse; if one of them enforces, nothing was spent
--          of each record of a sliding log six integers, see sliding_log.lua
--          numbers of the strings that hold so many buckets now that they should be split
--
--          of a refund, for each record how much was given back
--
--          of either nothing but one array, if a head has another level than the request says: the levels of the heads,
--          -1 for a chunk. Then nothing was asked or spent.
--
-- Value    of a string, binary, little-endian: 1 version and level, 4 life (the second since the epoch at which its key
--          expires), and for each bucket 37: 6 name, 1 algorithm + 16 × tag of the limit, 4 till (the second since the
--          epoch from which on it means nothing), 7 at (µs), 7 spent, 6 more (a token bucket's units per token, a sliding
--          window's previous count, µs from a sliding log's last entry to its at), 6 mark (see limit/refund.go). A tag is 4 bits of a token bucket's rate, 0 elsewhere:
--          one other rate in 16 of the same base has it too, and what is then given back of an earlier take is reckoned by
--          the new rate. A value of another version or length, or a bucket with impossible numbers, is read as empty.
--
-- Cost     TIME, one MGET, and a SETRANGE for each bucket that is spent from, or for several that are neighbours. A SET
--          where a bucket is new, and when the TTL has become too short: then it gets a quarter to spare. Nothing is
--          written by a refusal.

local unpack_binary, pack, find, sub, byte, ceil = struct.unpack, struct.pack, string.find, string.sub, string.byte, math.ceil
local MOST, EXACT = 4503599627370496, 9007199254740992 -- limit.MaxProduct = 2^52, and what a double counts exactly
local SPAN, MARKS = 16777216, 281474976710656 -- limit's markSpan = 2^24, and how many marks there are
local AHEAD = 3600000000 -- limit.StepBack
local FOREVER = 4294967295 -- the latest second that a life can say: later ones are said as this
local LONG = 300 -- bytes of a value above which it is not told as a whole, and is swept
local CROWD = 1189 -- bytes of a value with 32 buckets: larger ones are to be split
local request = ARGV[1]
local mode, subjects, enforced, records = unpack_binary("BBBB", request)
local p = 5 + subjects -- of the first record

--@ clock

-- values[i] is a string, false where there is none, or true where the key is not ours.
local values = redis.call("MGET", unpack(KEYS, 1, subjects))
local levels
for i = 1, subjects do
  local value, first = values[i], byte(request, 4 + i)
  if not value then
    if redis.call("EXISTS", KEYS[i]) == 1 then values[i] = true end
    if first > 32 and first < 128 then levels = true end
  else
    local found = byte(value)
    if found ~= first % 128 then
      if first < 128 and found and found >= 32 and found < 48 then levels = true end
      values[i] = ""
    end
  end
end
if levels then
  levels = {}
  for i = 1, subjects do
    local found = 0
    if byte(request, 4 + i) >= 128 then
      found = -1
    elseif values[i] then
      found = redis.call("GETRANGE", KEYS[i], 0, 0)
      found = found ~= "" and byte(found) % 16 or 0
    end
    levels[i] = found
  end
  return {levels}
end

-- What is to be written if nothing enforced refuses. Tables are made as large as they commonly get: growing is dear.
local patches, patched = {false, false, false, false, false, false, false, false, false, false, false, false}, 0
local needs = {false, false, false, false} -- µs, what the subjects that are spent from must outlive
local last_subject, next_place, drafts, grown, tails, crowded -- see patch.lua, sliding_log.lua, write.lua
local refused, logs, returned
local runs, ran -- see reply.lua

if mode == 0 then
  local denied = false
  for record = 1, records do
    if denied and record == enforced + 1 then drafts, tails = nil, nil end
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
      local wanted = kind
      kind = kind % 16
      if stored ~= wanted then
        if algorithm > 0 then mark = (mark + SPAN) % MARKS end
        if algorithm ~= kind then -- another limit's state: what it counts counts here as spent at one instant
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
        --@ token_bucket
      elseif kind == 3 then
        --@ fixed_window
      elseif kind == 4 then
        --@ sliding_window
      else
        --@ sliding_log
      end
      if not admits then
        if record <= enforced then denied = true end
        refused = refused or {}
        refused[#refused + 1] = record
      elseif cost > 0 and not denied then
        if not needs[subject] or expiry > needs[subject] then needs[subject] = expiry end
        local till = ceil(expiry / 1000000)
        if till > FOREVER then till = FOREVER end
        local state = pack("<BI4I7I7I6I6", wanted, till, at, spent, kind == 5 and 0 or more, mark)
        --@ patch
      end
    end
  end
  if denied then patched, tails = 0, nil end
else
  returned = {}
  --@ refund
end

--@ write
if returned then return returned end
--@ reply
