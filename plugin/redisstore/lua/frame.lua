-- One request: ask every bound, then spend all of the enforced ones, or none. Mode 1 gives back what an earlier request
-- has spent. Go's package limit is the reference model of all arithmetic here.
--
-- This file is the frame. The lines that begin with "--@" are replaced by the file of that name when the script is
-- assembled; text is cheaper than functions, which Redis would have to create anew for every call.
--
-- KEYS     the subjects: strings that hold buckets. Then the entries of sliding logs. All in one slot.
-- ARGV[1]  binary, little-endian, without gaps:
--            1 byte    mode: 0 take, 1 refund
--            1 byte    number of subjects
--            1 byte    number of records that enforce: they come first
--            1 byte    number of records
--            50 bytes  for each record:
--              1 byte  kind: the algorithm whose state the limit keeps (1 token bucket, 3 fixed, 4 sliding window, 5 log)
--              1 byte  subject: its place among KEYS, from 1; 128 more when a bucket of it has several records
--              8 bytes the bucket's name
--              5 doubles, all whole numbers. A take: room (the most usage with which the request fits; 2^53: it always
--              does), cost (what is spent if it fits; 0 only asks), and three of the algorithm's own, see its file.
--              A refund: see refund.lua.
--
-- Reply    for each subject its value before the request, of a long one only the buckets that were asked for. nil: not
--          there; 1: the key holds something that is not ours, and whatever wants it is left out of the decision
--          now: Redis's clock, µs since the epoch
--          two arrays, if there is anything to say in one of them:
--          numbers of the records that refuse; if one of them enforces, nothing was spent
--          of each record of a sliding log six integers, see sliding_log.lua
--
-- Value    of a subject, binary, little-endian: 4 life (the second since the epoch at which its key expires), and for each
--          bucket 37: 8 name, 1 algorithm, 7 till (µs since the epoch: from then on it means nothing), 7 at (µs), 7 spent,
--          7 more: a token bucket's units per token, a sliding window's previous count, a log's last instant (µs).
--          A value of another length, or a bucket with impossible numbers, is read as empty.
--
-- Cost     TIME, one MGET, and a SETRANGE for each bucket that is spent from, or for several that are neighbours. A SET
--          where a bucket is new, and when the TTL has become too short: then it gets a quarter to spare. Nothing is
--          written by a refusal.

local unpack_binary, pack, find, sub, ceil = struct.unpack, struct.pack, string.find, string.sub, math.ceil
local MOST, EXACT = 4503599627370496, 9007199254740992 -- limit.MaxProduct = 2^52, and what a double counts exactly
local FOREVER = 4294967295 -- the latest second that a life can say: later ones are said as this
local LONG = 300 -- bytes of a value above which it is not told as a whole, and is swept
local request = ARGV[1]
local mode, subjects, enforced, records, p = unpack_binary("BBBB", request)

--@ clock

-- values[i] is a string, false where there is none, or true where the key is not ours.
local values = redis.call("MGET", unpack(KEYS, 1, subjects))
for i = 1, subjects do
  if not values[i] and redis.call("EXISTS", KEYS[i]) == 1 then values[i] = true end
end

-- What is to be written if nothing enforced refuses. Tables are made as large as they commonly get: growing is dear.
local patches, patched = {false, false, false, false, false, false, false, false, false, false, false, false}, 0
local needs = {false, false, false, false} -- µs, what the subjects that are spent from must outlive
local last_subject, next_place, drafts, grown, tails -- see patch.lua, sliding_log.lua
local refused, logs

if mode == 0 then
  local denied = false
  for record = 1, records do
    if denied and record == enforced + 1 then drafts, tails = nil, nil end
    local kind, subject, name, room, cost, a, b, c
    kind, subject, name, room, cost, a, b, c, p = unpack_binary("<BBc8ddddd", request, p)
    local shared = subject > 128
    if shared then subject = subject - 128 end
    local value = drafts and drafts[subject] or values[subject]
    local guess = 5
    if subject == last_subject then guess = next_place end
    if value ~= true then
      --@ state
      if algorithm ~= kind then -- another limit's state: what it counts counts here as spent at one instant
        if algorithm == 1 then
          spent = ceil(spent / more)
        elseif algorithm == 5 then
          at = more
        else
          at = now
        end
        if spent > MOST then spent = MOST end
        more = 0
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
        local state = pack("<BI7I7I7I7", kind, expiry, at, spent, more)
        if not needs[subject] or expiry > needs[subject] then needs[subject] = expiry end
        --@ patch
      end
    end
  end
  if denied then patched, tails = 0, nil end
else
  --@ refund
end

--@ write
--@ reply
