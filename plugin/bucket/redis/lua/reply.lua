-- Replies. A long value is told as its life and the buckets that the records name: runs are where those lie that are
-- neighbours, in threes of subject, first and last byte. ran is the length of runs.
for i = 1, subjects do
  local value = values[i]
  if value and value ~= true and #value > LONG and #value % 37 == 5 then
    local named = sub(value, 1, 5)
    for run = 1, ran or 0, 3 do
      if runs[run] == i then named = named .. sub(value, runs[run + 1], runs[run + 2]) end -- without what is new
    end
    values[i] = named
  end
end
values[subjects + 1] = now
if refused or logs or crowded then
  values[subjects + 2], values[subjects + 3] = refused or false, logs or false
  if crowded then values[subjects + 4] = crowded end
end
return values
