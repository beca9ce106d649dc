"""The gRPC front end that LocalAI talks to: its `Backend` service over the engine link."""
