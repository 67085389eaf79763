-- Makes the reply to a take from values. Of a long value it has the first 5 bytes and the buckets of the records.
-- In: values, runs (where neighbours among those buckets lie, in threes of subject, first and last byte), ran (the
-- length of runs), denials, logs, to_split.
for i = 1, subjects do
  local value = values[i]
  if value and value ~= true and #value > LONG then
    local named = sub(value, 1, 5)
    for run = 1, ran or 0, 3 do
      if runs[run] == i then named = named .. sub(value, runs[run + 1], runs[run + 2]) end -- without what is new
    end
    values[i] = named
  end
end
values[subjects + 1] = now
if denials or logs or to_split then
  values[subjects + 2], values[subjects + 3] = denials or false, logs or false
  if to_split then values[subjects + 4] = to_split end
end
