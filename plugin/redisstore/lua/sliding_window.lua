-- Sliding windows, by the two-window approximation. spent is the count of the window that starts at the instant at, more
-- is the count of the one before.
-- Parameters: room in units of 1/ticks token, cost in tokens, a window (µs), b ticks (the window in ticks), c tick
-- (µs).
-- Cost: no call of Redis.
local window, ticks, tick = a, b, c
at = at - at % window
local start = now - now % window
if start > at then
  more = start == at + window and spent or 0
  at, spent = start, 0
end
local most = (MOST - MOST % ticks) / ticks
if more > most then more = most end
local current = spent < most and spent or most
local elapsed = 0
if now > at then
  elapsed = now - at
  elapsed = (elapsed - elapsed % tick) / tick
end
admits = more * (ticks - elapsed) + current * ticks <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + 2 * window -- it counts in the next window too
end
