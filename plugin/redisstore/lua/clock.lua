-- now: µs since the epoch by Redis's clock, the one clock of all nodes. Tests assemble the script with another file here.
local now = redis.call("TIME")
now = now[1] * 1000000 + now[2]
