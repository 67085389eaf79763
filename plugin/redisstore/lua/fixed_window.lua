-- Fixed windows, aligned to the epoch. spent is the count of the window that starts at the instant at.
-- Parameters: room and cost in tokens, a window (µs).
-- Cost: no call of Redis.
local window = a
at = at - at % window
local start = now - now % window
if start > at then at, spent = start, 0 end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + window
end
more = 0
