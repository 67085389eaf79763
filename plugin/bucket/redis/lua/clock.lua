-- now: µs since the epoch by Redis's clock, the one clock of all nodes; BACK: by how many µs it may step back. Tests
-- assemble the script with another file here.
local now, BACK = redis.call("TIME"), 3600000000
now = now[1] * 1000000 + now[2]
