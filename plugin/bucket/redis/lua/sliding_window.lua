-- Counts in sliding windows, by the two-window approximation.
-- State: at (start of the window), spent (tokens in it), more (tokens in the window before).
-- In: room in units of 1/ticks token, cost in tokens, a window (µs), b ticks (the window in ticks), c tick (µs).
-- Out: admits, expiry.
-- Cost: no command.
local window, ticks, tick = a, b, c
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then
  more = start == at + window and spent or 0
  at, spent, mark = start, 0, (mark + SPAN) % MARKS
end
local most = (MOST - MOST % ticks) / ticks
if most > 281474976710655 then most = 281474976710655 end -- what 6 bytes hold
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
