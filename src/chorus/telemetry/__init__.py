"""What Chorus tells of itself: metrics, events and traces, each declared once."""
