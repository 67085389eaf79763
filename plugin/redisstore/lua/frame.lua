-- One request: ask every bound, then spend all of the enforced ones, or none. Mode 1 gives back what an earlier request
-- has spent. Go's package limit is the reference model of all arithmetic here.
--
-- This file is the frame. The lines that begin with "--@" are replaced by the file of that name when the script is
-- assembled; text is cheaper than functions, which Redis would have to create anew for every call.
--
-- KEYS     the hashes, then the strings, then the entries of sliding logs. All in one slot.
-- ARGV[1]  binary, little-endian, without gaps:
--            1 byte    mode: 0 take, 1 refund
--            1 byte    number of hashes
--            1 byte    number of strings
--            1 byte    number of records that enforce: they come first
--            1 byte    number of records
--            1 byte    for each hash: number of its fields in ARGV, the last of them its life (":")
--            50 bytes  for each record:
--              1 byte  kind: the algorithm whose state the limit keeps (1 token bucket, 3 fixed, 4 sliding window, 5 log)
--              1 byte  bucket: its place among the values below, from 1
--              6 doubles, all whole numbers. A take: ask (what must fit; -2^53 always does), cost (what is spent if so;
--              0 only asks), hard (usage that is still admitted), and three of the algorithm's own, see its file.
--              A refund: see refund.lua.
-- ARGV[2…] the fields of all hashes, in the order of the hashes.
--
-- Reply    1  now: Redis's clock, µs since the epoch
--          2  numbers of the records that refuse; nil: none. If one of them enforces, nothing was spent
--          3  of each record of a sliding log six integers; nil: no log was asked. See sliding_log.lua
--          4  the values as they were before the request: one for each field of ARGV, one for each string. nil: not
--             there; 1: the key holds something that is not ours, and whatever wants it is left out of the decision
--
-- Value    binary, little-endian, 29 bytes: 1 algorithm, 7 till (µs since the epoch: from then on it means nothing), 7 at
--          (µs), 7 spent, 7 more: a bucket's units per token, a sliding window's previous count, a log's last instant
--          (µs). A string adds 4, its life: the second at which its key expires. A log adds 15, see sliding_log.lua.
--          Whatever has another length or impossible numbers is read as an empty bucket.
-- Life     of a hash: binary, 4 bytes, the second at which its key expires.
--
-- Cost     TIME, an HMGET and at most an HSET for each hash, one MGET, a SET for each string that is spent from. A TTL is
--          written when it has become too short, and then with a quarter to spare. Nothing is written by a refusal.

local unpack_binary, pack, floor, ceil = struct.unpack, struct.pack, math.floor, math.ceil
local MOST = 4503599627370496 -- 2^52, limit.MaxProduct
local FOREVER = 4294967295 -- the latest second that a life can say: later ones are said as this
local request = ARGV[1]
local mode, hashes, strings, enforced, records, p = unpack_binary("BBBBB", request)

--@ clock

-- Read. values[i] is a string, false where there is none, or true where the key is not ours.
local values, argument = nil, 2
for h = 1, hashes do
  local fields
  fields, p = unpack_binary("B", request, p)
  local found = redis.pcall("HMGET", KEYS[h], unpack(ARGV, argument, argument + fields - 1))
  argument = argument + fields
  if found.err then
    for i = 1, fields do found[i] = true end
    found.err = nil
  end
  if values then
    for i = 1, fields do values[#values + 1] = found[i] end
  else
    values = found
  end
end
local first_string = values and #values or 0
if strings > 0 then
  local found = redis.call("MGET", unpack(KEYS, hashes + 1, hashes + strings))
  for i = 1, strings do
    if not found[i] and redis.call("EXISTS", KEYS[hashes + i]) == 1 then found[i] = true end
  end
  if values then
    for i = 1, strings do values[first_string + i] = found[i] end
  else
    values = found
  end
end

-- What is to be written if nothing enforced refuses: states, entries of logs, TTLs.
local drafts, tails, lives, longest = {}, {}, nil, 0
local refused, logs = nil, nil

if mode == 0 then
  local denied = false
  for record = 1, records do
    if denied and record == enforced + 1 then drafts, tails = {}, {} end
    local kind, bucket, ask, cost, hard, a, b, c
    kind, bucket, ask, cost, hard, a, b, c, p = unpack_binary("<BBdddddd", request, p)
    local raw = drafts[bucket] or values[bucket]
    if raw ~= true then
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
      local admits, expiry, suffix
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
        if bucket <= first_string then
          if expiry > longest then longest = expiry end
          drafts[bucket] = pack("<BI7I7I7I7", kind, expiry, at, spent, more)
        else
          if expiry > life * 1000000 then
            lives = lives or {}
            lives[bucket] = expiry
            life = ceil((expiry + (expiry - now) / 4) / 1000000)
            if life > FOREVER then life = FOREVER end
          end
          drafts[bucket] = pack("<BI7I7I7I7I4", kind, expiry, at, spent, more, life)
        end
        if suffix then drafts[bucket] = drafts[bucket] .. suffix end
      end
    end
  end
  if denied then drafts, tails = {}, {} end
else
  --@ refund
end

--@ write

return {now, refused or false, logs or false, values or false}
