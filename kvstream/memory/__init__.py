"""The memory of a reading: held, saved, restored, joined. `answer` answers from it."""
