-- Reads the entries of a sliding log, which are a string of their own. It begins with 15 bytes: 4 head, 4 count,
-- 7 forgotten. Then follow 14 bytes for each admission in the order of time: 7 instant (µs), 7 the sum of all costs up
-- to this one, it included. With sums a search answers how much has expired and when there is room.
--
-- In: algorithm, spent, entries (key), tail (what this request has changed: {number of its first entry, bytes, header,
-- ms to live}, or nil).
-- Out: head and count (numbers of the oldest entry that counts, and of the next one), forgotten (the sum before head),
-- chunk (a table if the key holds a foreign type), entry(i) → instant and sum, first(low, stop, column, value) → number
-- of the first entry from low on whose column (1 instant, 2 sum) is above value, or stop; lost (an entry is missing).
local head, count, forgotten, lost = 0, 0, 0, false
local from, chunk = 0, redis.pcall("GETRANGE", entries, 0, 238) -- with the first 16
if tail then
  head, count, forgotten = unpack_binary("<I4I4I7", tail[3])
elseif algorithm == 5 and type(chunk) == "string" then
  if #chunk < 15 then
    lost = true
  else
    head, count, forgotten = unpack_binary("<I4I4I7", chunk)
    lost = head > count or head == count and spent > 0 or count > 1000000 or forgotten > EXACT -- no log is so long
  end
end
if type(chunk) == "string" then chunk = sub(chunk, 16) end
local function entry(i)
  local start, bytes = from, chunk
  if tail and i >= tail[1] then
    start, bytes = tail[1], tail[2]
  elseif i < from or i >= from + 16 then
    from, chunk = i, redis.call("GETRANGE", entries, 15 + i * 14, 238 + i * 14)
    start, bytes = from, chunk
  end
  if #bytes < (i - start + 1) * 14 then
    lost = true
    return 0, 0
  end
  return unpack_binary("<I7I7", bytes, (i - start) * 14 + 1)
end
local function first(low, stop, column, value)
  local high, step = low, 1
  while high < stop and not lost do -- most searches end near where they begin
    if select(column, entry(high)) > value then break end
    low, high, step = high + 1, high + step, step * 2
  end
  if high > stop then high = stop end
  while low < high and not lost do
    local middle = ceil((low + high - 1) / 2)
    if select(column, entry(middle)) > value then high = middle else low = middle + 1 end
  end
  return low
end
