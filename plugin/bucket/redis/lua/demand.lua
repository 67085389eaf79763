-- Exchanges the messages of nodes that share one limit fairly, by Redis's clock.
--
-- KEYS[1]  the messages: a hash of "lead" (the node that leads), "caps" (what it has published), and "of <node>" (the
--          report of each node). A value is the instant at which it ends (ms since the epoch), a space and the text
-- ARGV[1]  "report": keeps the node's report, and makes the node lead if no other does; "publish": keeps the caps if the
--          node leads
-- ARGV[2]  the node
-- ARGV[3]  the report, or the caps
-- ARGV[4]  how long it is kept (ms)
-- ARGV[5]  report: how long the node leads (ms)
--
-- Reply    publish: whether the node leads (1 or 0)
--          report: an array of that; how long the caps last (ms); the caps, "" if there are none; and, if the node
--          leads, the reports of all nodes
--
-- Cost     TIME and two to four commands; for the node that leads also one for each node that has left.
local key, action, node, life = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4])
local now = redis.call("TIME") -- nothing is written yet
now = now[1] * 1000 + math.floor(now[2] / 1000)

-- read returns the text of a value and how long it lasts. What lasts longer than a report is from before the clock
-- stepped back.
local function read(value)
  local ends, text = string.match(value or "", "^(%d+) (.*)$")
  local lasts = ends and ends - now or 0
  if lasts > 0 and lasts <= life then
    return text, lasts
  end
  return nil, 0
end

local function keep(field, text, lasts)
  redis.call("HSET", key, field, string.format("%d ", now + lasts) .. text)
end

local leader = read(redis.call("HGET", key, "lead"))
if action == "publish" then
  if leader ~= node then
    return 0
  end
  keep("caps", ARGV[3], life)
  return 1
end

keep("of " .. node, ARGV[3], life) -- first, because a full Redis stops a script only at its first write
redis.call("PEXPIRE", key, 60000)
if leader and leader ~= node then
  local caps, lasts = read(redis.call("HGET", key, "caps"))
  return {0, lasts, caps or ""}
end
keep("lead", node, ARGV[5])
local caps, lasts = read(redis.call("HGET", key, "caps"))
local reply, all = {1, lasts, caps or ""}, redis.call("HGETALL", key)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 3) == "of " then
    local report = read(all[i + 1])
    if report then
      reply[#reply + 1] = report
    else
      redis.call("HDEL", key, all[i])
    end
  end
end
return reply
