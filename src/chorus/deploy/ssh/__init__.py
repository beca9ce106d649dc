"""A cluster brought up, looked after and taken down from one machine, by SSH."""
