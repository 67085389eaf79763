-- What is found in textbooks: a hash with a float balance for each bucket, all of them asked and then spent.
-- KEYS the buckets. ARGV for each: tokens per second, burst, cost. Reply: admitted (1 or 0), then each one's tokens.
local t = redis.call("TIME")
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local admitted = true
local tokens = {}
for i = 1, #KEYS do
  local rate = tonumber(ARGV[i * 3 - 2])
  local burst = tonumber(ARGV[i * 3 - 1])
  local bucket = redis.call("HMGET", KEYS[i], "tokens", "last")
  local balance = tonumber(bucket[1]) or burst
  local last = tonumber(bucket[2]) or now
  tokens[i] = math.min(burst, balance + math.max(0, now - last) * rate)
  if tokens[i] < tonumber(ARGV[i * 3]) then
    admitted = false
  end
end
local reply = {admitted and 1 or 0}
for i = 1, #KEYS do
  if admitted then
    tokens[i] = tokens[i] - tonumber(ARGV[i * 3])
    redis.call("HSET", KEYS[i], "tokens", tostring(tokens[i]), "last", tostring(now))
    redis.call("PEXPIRE", KEYS[i], math.ceil(tonumber(ARGV[i * 3 - 1]) / tonumber(ARGV[i * 3 - 2]) * 1000))
  end
  reply[i + 1] = math.floor(tokens[i])
end
return reply
