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
    --@ state
    local state
    if cost > 0 then
      --@ refund
      if back > 0 then -- till stays, which is later than needed, and the string lives long enough
        if kind == 5 then more = spent > 0 and at - more or 0 end
        needs[subject], state = needs[subject] or 0, sub(value, place + 6, place + 10)
      end
    elseif cost < 0 then
      local expiry
      --@ charge
      if back < 0 then
        if not needs[subject] or expiry > needs[subject] then needs[subject] = expiry end
        local till = ceil(expiry / 1000000)
        if till > FOREVER then till = FOREVER end
        state = pack("<BI4", wanted, till)
      end
    end
    if state then
      state = state .. pack("<I7I7I6I6", at, spent, more, mark)
      --@ patch
    end
  end
  settled[record] = back
end
