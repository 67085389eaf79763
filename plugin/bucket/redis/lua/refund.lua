-- Refunds what an earlier request has spent, as far as it is certain that no limit admits more for it. What is doubtful
-- stays spent; limit/refund.go has the proof. Each record refunds to one bucket:
--   1 byte, 1 byte, 6 bytes as for a take
--   8 doubles, all whole numbers:
--   cost   what was spent (units of the algorithm)
--   taken  the bucket's instant right after the take (µs; a window's start; of a log, the instant of its entry)
--   debt   what the bucket counted as spent right after the take
--   was    its mark at the take
--   a b c  as for a take
--   step   of a token bucket: the ticks that refill a token, rounded up
-- Out: returned (units, by record).
-- Cost: as a take. Of a sliding log one GETRANGE or two, and two SETRANGE or a SET.
for record = 1, records do
  local kind, subject, name, cost, taken, debt, was, a, b, c, step
  kind, subject, name, cost, taken, debt, was, a, b, c, step, p = unpack_binary("<BBc6dddddddd", request, p)
  local shared = subject > 128
  if shared then subject = subject - 128 end
  local value, back, guess = drafts and drafts[subject] or values[subject], 0, 6
  if value ~= true then
    --@ state
    local since = (mark - was) % MARKS
    kind = kind % 16
    if stored % 16 ~= kind or stored ~= unpack_binary("B", request, p - 72) then
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
        --@ token_bucket
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
        end
      end
    elseif kind == 5 then
      local entries = KEYS[c]
      local tail = tails and tails[entries]
      --@ log_entries
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
    if back > 0 then -- till stays, which is later than needed
      if kind == 5 then more = spent > 0 and at - more or 0 end
      local state = sub(value, place + 6, place + 10) .. pack("<I7I7I6I6", at, spent, more, mark)
      needs[subject] = 0 -- its string lives long enough
      --@ patch
    end
  end
  returned[record] = back > 0 and back or 0
end
