-- One bucket by GCRA with a float arrival time in a string, as rate limiting libraries send it: a call for each limit.
-- KEYS[1] the bucket. ARGV: burst, tokens per period, period (s), cost.
-- Reply: admitted cost, remaining, retry after (s, text; -1 none), reset after (s, text).
local burst, rate, period, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local interval = period / rate
local increment, tolerance = interval * cost, interval * burst
local epoch = 1483228800
local t = redis.call("TIME")
local now = (t[1] - epoch) + t[2] / 1000000
local arrival = redis.call("GET", KEYS[1])
arrival = math.max(arrival and tonumber(arrival) or now, now)
local new = arrival + increment
local room = now - (new - tolerance)
local remaining = room / interval
if remaining < 0 then
  return {0, 0, tostring(-room), tostring(arrival - now)}
end
local reset = new - now
if reset > 0 then
  redis.call("SET", KEYS[1], new, "EX", math.ceil(reset))
end
return {cost, remaining, tostring(-1), tostring(reset)}
