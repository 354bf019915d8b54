"""Taking a user's own classes and functions to another process."""
