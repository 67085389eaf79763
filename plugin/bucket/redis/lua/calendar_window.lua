-- Counts in the periods of a calendar: days, weeks, months, quarters or years of a time zone.
-- State: at (start of the period), spent (tokens in it), more (its length, µs). It counts until at + more: state.lua
-- reads it as empty from then on.
-- In: room and cost in tokens; of the period that contains the node's now: a its start (µs), b its end, c the length
-- of the period before it (s) × 2^25 + the length of the one after it (s). Out: admits, expiry.
-- Cost: no command.
local start, length = a, b - a
if now >= b then
  length = c % 33554432 * 1000000
  start = now - (now - b) % length
elseif now < a then
  length = (c - c % 33554432) / 33554432 * 1000000
  start = now - (now - a) % length
end
if stored ~= wanted or start == at then -- what another limit counted is carried over
  at, more = start, length
elseif start > at then -- by other zone data: the next period if it begins where the state's ends, else the same one
  if at + more - start <= 10800000000 then spent = 0 end
  at, more, mark = start, length, (mark + SPAN) % MARKS
elseif start + length > at + more then -- an earlier one by other zone data
  more = start + length - at
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + more
end
