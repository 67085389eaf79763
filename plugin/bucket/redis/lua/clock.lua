-- Out: now (µs since the epoch by Redis's clock, the one clock of all nodes), STEP_BACK (limit.StepBack: how many µs it
-- may step back). Tests assemble the script with another clock.
local now, STEP_BACK = redis.call("TIME"), 3600000000 -- nothing is written yet
now = now[1] * 1000000 + now[2]
