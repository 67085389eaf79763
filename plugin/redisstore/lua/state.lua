-- In: value (a subject's, or false), name, guess (where the bucket may lie in it). Out: value (false unless it is of our
-- form), place (of the bucket in it, or nil), algorithm (0: nothing was spent yet, or it means nothing any more), at,
-- spent, more.
local place
local algorithm, at, spent, more = 0, now, 0, 0
if value then
  local size = #value
  if size % 37 == 4 then
    local there, till
    if size >= guess + 36 then -- buckets mostly lie in the order in which requests name them
      there, algorithm, till, at, spent, more = unpack_binary("<c8BI7I7I7I7", value, guess)
    end
    if there == name then
      place = guess
    else
      place = find(value, name, 5, true)
      while place and place % 37 ~= 5 do place = find(value, name, place + 1, true) end
      if place then algorithm, till, at, spent, more = unpack_binary("<BI7I7I7I7", value, place + 8) end
    end
    if not place or till <= now or algorithm == 0 or algorithm == 2 or algorithm > 5 or algorithm == 1 and more == 0
      or spent > EXACT or at > EXACT or more > EXACT then
      algorithm, at, spent, more = 0, now, 0, 0
    end
  else
    value = false
  end
end
