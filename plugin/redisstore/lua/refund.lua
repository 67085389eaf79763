-- Gives back what an earlier request has spent, as far as it is certain that nobody's limit suffers: whatever is doubtful
-- stays spent. Each of the records, which have the form of a take's, gives back to one bucket:
--   cost   what was spent (units of the algorithm), in the place of room
--   taken  the instant at which it was spent (µs; of a log, the instant of its entry), in the place of cost
--   a b c  as for a take
-- Reply: as for a take; a record that refuses gave back nothing.
for record = 1, records do
  local kind, subject, name, cost, taken, a, b, c
  kind, subject, name, cost, taken, a, b, c, p = unpack_binary("<BBc8ddddd", request, p)
  local shared = subject > 128
  if shared then subject = subject - 128 end
  local value, back, guess = drafts and drafts[subject] or values[subject], 0, 5
  if value ~= true then
    --@ state
    if algorithm ~= kind then
      back = 0
    elseif kind == 1 then
      -- Without the request the bucket might have been full since, and all that was refilled lost. With each tick, so
      -- much less of the debt is certain to be the request's own.
      if more == b then
        local gone = ceil(((now > at and now or at) - taken) / c) -- a clock that has stepped back refills nothing
        back = gone >= 0 and cost - gone * a or 0 -- spent after at: in a bucket that is gone
        if back > spent then back = spent end
        if back > 0 then spent = spent - back end
      end
    elseif kind == 5 then
      local entries = KEYS[c]
      local tail = tails and tails[entries]
      --@ log_entries
      if type(chunk) ~= "table" then
        local i = first(head, count, 1, taken - 1)
        local before = forgotten
        if i > head then before = select(2, entry(i - 1)) end
        if i < count and count - i <= 64 then -- later sums change too, so only a recent entry is worth it
          local instant, sum = entry(i)
          if instant == taken and sum - (before > forgotten and before or forgotten) >= cost then
            local bytes = ""
            for j = i, count - 1 do
              instant, sum = entry(j)
              bytes = bytes .. pack("<I7I7", instant, sum - cost)
            end
            if not lost then
              back, spent = cost, spent - cost
              if tail and tail[1] < i then i, bytes = tail[1], sub(tail[2], 1, (i - tail[1]) * 14) .. bytes end
              tails = tails or {}
              tails[entries] = {i, bytes, pack("<I4I4I7", head, count, forgotten)}
            end
          end
        end
      end
    else
      local start = taken - taken % a
      if at == start then
        back = cost < spent and cost or spent
        spent = spent - back
      elseif kind == 4 and at == start + a then
        back = cost < more and cost or more
        more = more - back
      end
    end
    if back > 0 then -- till stays: it is later than need be
      local state = sub(value, place + 8, place + 15) .. pack("<I7I7I7", at, spent, more)
      needs[subject] = 0 -- its life is long enough
      --@ patch
    end
  end
  if back <= 0 then
    refused = refused or {}
    refused[#refused + 1] = record
  end
end
