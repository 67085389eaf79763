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
