-- Counts in token and leaky buckets.
-- State: at, spent (the debt at that instant, in units of 1/base token), more (the base).
-- In: room (units; 2^52 more than the capacity if the request always fits) and cost (units), a rate (units per tick),
-- b base (units per token), c tick (µs). Out: admits, expiry.
-- Cost: no command.
local rate, base, tick = a, b, c
local most = rate * ((MOST - MOST % tick) / tick) -- the largest debt: no wait exceeds 2^52 µs
if most > MOST then most = MOST end
if algorithm ~= 1 or more ~= base then -- whole tokens are kept, a fraction counts as one
  if algorithm == 1 then spent = ceil(spent / more) else at = at - at % tick end
  local tokens = (most - most % base) / base
  if spent > tokens then spent = tokens end
  spent, more = spent * base, base
end
if spent > most then spent = most end
local elapsed
if tick == 1 then
  elapsed = now - at
else
  local off = at % tick
  if off > 0 then at = at + tick - off end -- written in finer ticks: rounded up, so that no refill counts twice
  elapsed = now - now % tick - at
end
if elapsed > 0 then -- a clock that steps back refills nothing
  local refill = elapsed / tick * rate
  if refill >= spent then spent = 0 else spent = spent - refill end
  at = at + elapsed
end
admits = spent <= room
if admits and cost > 0 then
  spent = spent + cost
  -- A limit that never denies remembers no more than its capacity, which is in its room.
  if room > MOST and spent > room - MOST then spent = room - MOST end
  expiry = at + (spent + -spent % rate) / rate * tick -- full again; a quotient rounded up without a function
end
