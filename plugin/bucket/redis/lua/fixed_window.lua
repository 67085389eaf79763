-- Counts in fixed windows, aligned to the epoch.
-- State: at (start of the window), spent (tokens in it).
-- In: room and cost in tokens, a window (µs). Out: admits, expiry.
-- Cost: no command.
local window = a
local off = at % window
if off > 0 then at, mark = at - off, (mark + SPAN) % MARKS end
local start = now - now % window
if start > at then at, spent, mark = start, 0, (mark + SPAN) % MARKS end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  if spent > MOST then spent = MOST end
  expiry = at + window
end
more = 0
