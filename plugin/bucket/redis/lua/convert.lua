-- Converts the state of a bucket that another limit wrote: what it counts is spent at one instant here.
-- In: kind with the tag, stored, algorithm, at, spent, more, mark, b. Out: wanted (kind with the tag), kind without it,
-- at, spent, more, mark. The fraction of another base is left to token_bucket.lua.
local wanted = kind
kind = kind % 16
if stored ~= wanted then
  if algorithm > 0 then mark = (mark + SPAN) % MARKS end
  if algorithm ~= kind then
    if algorithm == 1 then
      spent = ceil(spent / more)
    else
      at = algorithm == 5 and spent > 0 and more or now
    end
    if spent > MOST then spent = MOST end
    more = 0
  end
elseif kind == 1 and more ~= b then
  mark = (mark + SPAN) % MARKS
end
