-- Sliding windows, by the two-window approximation. spent is the count of the window that starts at the instant at, more
-- is the count of the one before.
-- Parameters: room in units of 1/ticks token, cost in tokens, a window (µs), b ticks (the window in ticks), c tick
-- (µs).
-- Cost: no call of Redis.
local window, ticks, tick = a, b, c
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then
  more = start == at + window and spent or 0
  at, spent, mark = start, 0, (mark + SPAN) % MARKS
end
local most = (MOST - MOST % ticks) / ticks
if most > 281474976710655 then most = 281474976710655 end -- what 6 bytes can say
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
