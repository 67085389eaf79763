-- Sliding windows, by the two-window approximation. spent is the count of the window that starts at the instant at, more
-- is the count of the one before.
-- Parameters: hard in units of 1/ticks token, ask and cost in tokens, a window (µs), b ticks (the window in ticks), c tick
-- (µs).
-- Cost: no call of Redis.
local window, ticks, tick = a, b, c
at = at - at % window
local start = now - now % window
if start > at then
  more = start == at + window and spent or 0
  at, spent = start, 0
end
local most = floor(MOST / ticks)
if more > most then more = most end
local current = spent < most and spent or most
local elapsed = now > at and floor((now - at) / tick) or 0
admits = more * (ticks - elapsed) <= hard - (ask + current) * ticks
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + 2 * window -- it counts in the next window too
end
