-- Charges what a request cost beyond what it had reserved, whether or not there is room.
-- In: the numbers of a record of settle.lua, the state. Out: back (minus the units that are charged), the state with
-- them, wanted, expiry.
-- Cost: no command.
local changed = algorithm > 0 and (stored ~= kind or kind % 16 == 1 and more ~= b) -- by another limit since the take
--@ convert
if not changed and (kind == 1 or kind == 3 or kind == 6) then -- others would count it at the wrong instant
  local room, admits = -1 -- the algorithm's file brings the state to now, and spends nothing
  if kind == 1 then
    --@ token_bucket
  elseif kind == 3 then
    --@ fixed_window
  else
    --@ calendar_window
  end
  local units = debt - spent < -cost and debt - spent or -cost
  if units > 0 then
    spent, back = spent + units, -units
    if kind == 1 then
      expiry = at + (spent + -spent % a) / a * c
    else
      expiry = at + (kind == 3 and a or more)
    end
  end
end
