-- Token and leaky buckets. spent is the debt at the instant at, in units of 1/base token; more is the base.
-- Parameters: hard (units), ask and cost (units), a rate (units per tick), b base (units per token), c tick (µs).
-- Cost: no call of Redis.
local rate, base, tick = a, b, c
local most = rate * floor(MOST / tick) -- the largest debt that is remembered: no wait is longer than 2^52 µs
if most > MOST then most = MOST end
if algorithm ~= 1 or more ~= base then -- whole tokens are kept, a fraction counts as one
  if algorithm == 1 then spent = ceil(spent / more) else at = at - at % tick end
  local tokens = floor(most / base)
  if spent > tokens then spent = tokens end
  spent, more = spent * base, base
end
if spent > most then spent = most end
local off = at % tick
if off > 0 then at = at + tick - off end -- written in finer ticks: no refill is counted twice
local elapsed = now - now % tick - at
if elapsed > 0 then -- a clock that steps back refills nothing
  local refill = elapsed / tick * rate
  if refill >= spent then spent = 0 else spent = spent - refill end
  at = at + elapsed
end
admits = spent + ask <= hard
if admits and cost > 0 then
  spent = spent + cost
  if spent > hard then spent = hard end -- a limit that never denies remembers no more
  expiry = at + ceil(spent / rate) * tick -- full again
end
