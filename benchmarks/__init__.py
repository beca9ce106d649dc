"""Chorus measured against its peers, both sides in the same run. `python -m benchmarks --help` says how."""
