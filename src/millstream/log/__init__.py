"""The durable home of all streams: Delta tables that anyone can read, written one commit an epoch."""
