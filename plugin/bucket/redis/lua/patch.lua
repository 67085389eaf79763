-- Records the new state of a bucket, to be written in the end.
-- In: subject, shared, value, name, place, state (31 bytes). Out: patches and patched (threes of subject, offset,
-- bytes), drafts (values with the states of this request, by subject), grown (subjects with a new bucket),
-- last_subject, next_place.
if shared or not place then -- another record of the request may name it again
  drafts = drafts or {false, false, false, false}
  if place then
    drafts[subject] = sub(value, 1, place + 5) .. state .. sub(value, place + 37)
  else
    value = value or pack("<BI4", byte(request, 6 + subject) % 128, 0)
    drafts[subject], place, grown = value .. name .. state, #value + 1, grown or {false, false, false, false}
    grown[subject] = true
  end
end
if last_subject == subject and next_place == place then -- neighbours are written together
  patches[patched] = patches[patched] .. name .. state
else
  patches[patched + 1], patches[patched + 2], patches[patched + 3], patched = subject, place + 5, state, patched + 3
end
last_subject, next_place = subject, place + 37
