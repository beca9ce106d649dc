"""The leader: takes requests, schedules steps, samples tokens, tells the front ends."""
