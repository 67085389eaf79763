-- Makes the reply to a take from values.
-- In: values, denials, logs.
values[subjects + 1] = now
if denials or logs then values[subjects + 2], values[subjects + 3] = denials or false, logs or false end
