-- Replies. A long value is told as its life and the buckets that the records name.
for i = 1, subjects do
  local value = values[i]
  if value and value ~= true and #value > LONG and #value % 37 == 5 then
    local named = {sub(value, 1, 5)}
    for record = 0, records - 1 do
      local _, subject, name = unpack_binary("BBc6", request, 5 + subjects + record * 48)
      if subject % 128 == i then
        local place = find(value, name, 6, true)
        while place and place % 37 ~= 6 do place = find(value, name, place + 1, true) end
        if place then named[#named + 1] = sub(value, place, place + 36) end
      end
    end
    values[i] = table.concat(named)
  end
end
values[subjects + 1] = now
if refused or logs or crowded then
  values[subjects + 2], values[subjects + 3] = refused or false, logs or false
  if crowded then values[subjects + 4] = crowded end
end
return values
