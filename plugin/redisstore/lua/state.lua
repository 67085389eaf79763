-- In: raw, a value or false; bucket. Out: algorithm (0: nothing was spent yet, or it means nothing any more), at, spent,
-- more; life (s, when the key of a string expires; 0: unknown).
local algorithm, at, spent, more, life = 0, now, 0, 0, 0
if raw then
  local size, till, sound = #raw, nil, nil
  if bucket > first_string then
    size = size - 4
    if size == 29 or size == 44 then algorithm, till, at, spent, more, life = unpack_binary("<BI7I7I7I7I4", raw) end
  elseif size == 29 or size == 44 then
    algorithm, till, at, spent, more = unpack_binary("<BI7I7I7I7", raw)
  end
  if algorithm == 5 then
    sound = size == 44
  else
    sound = size == 29 and (algorithm == 3 or algorithm == 4 or algorithm == 1 and more > 0)
  end
  if not sound or till <= now or spent > 2 * MOST or at > 2 * MOST or more > 2 * MOST then
    if not sound then life = 0 end
    algorithm, at, spent, more = 0, now, 0, 0
  end
end
