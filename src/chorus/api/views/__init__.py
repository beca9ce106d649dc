"""What the server says of itself: health, models, ranks, events, metrics."""
