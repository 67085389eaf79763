-- In: value (a subject's, or false), name, guess (where the bucket may lie in it). Out: value (false unless it is of our
-- form), place (of the bucket in it, or nil), stored (its algorithm and tag), algorithm (0: nothing was spent yet, or it
-- means nothing any more, or is of a time to which the clock will not come soon), at, spent, more, mark.
local place
local stored, algorithm, at, spent, more, mark = 0, 0, now, 0, 0, 0
if value then
  local size = #value
  if size % 37 == 5 then
    local there, till
    -- Buckets mostly lie in the order in which requests name them; the first of a long value is rarely the one.
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
    if not place or till * 1000000 <= now and till < FOREVER or algorithm == 0 or algorithm == 2 or algorithm > 5
      or algorithm == 1 and more == 0 or algorithm == 5 and more > at or spent > EXACT or at > EXACT or at > now + AHEAD then
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
