-- Gives back what an earlier request has spent, as far as it is certain that nobody's limit suffers: whatever is doubtful
-- stays spent. Each of the records, which have one double more than a take's, gives back to one bucket:
--   cost   what was spent (units of the algorithm)
--   taken  the instant at which it was spent (µs; of a log, the instant of its entry)
--   a b c  as for a take
--   owed   a token bucket's debt right after it was spent (units); 0 for the others
-- Reply: as for a take; a record that refuses gave back nothing.
for record = 1, records do
  local kind, subject, name, cost, taken, a, b, c, owed
  kind, subject, name, cost, taken, a, b, c, owed, p = unpack_binary("<BBc8dddddd", request, p)
  local shared = subject > 128
  if shared then subject = subject - 128 end
  local value, back, guess = drafts and drafts[subject] or values[subject], 0, 5
  if value ~= true then
    --@ state
    if algorithm ~= kind then
      back = 0
    elseif kind == 1 then
      -- What has been refilled since might have been refilled without the refunded request too, or been lost to a full
      -- bucket: so much of the debt is not the request's any more.
      if more == b then
        back = owed - ceil((now - taken) / c) * a
        if back > cost then back = cost end
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
