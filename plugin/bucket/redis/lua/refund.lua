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
    else
      back = 0
    end
  end
elseif kind == 5 then
  local entries = keys[key_offset + c]
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
