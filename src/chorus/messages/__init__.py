"""What travels between processes: one file per link, with its conversions."""
