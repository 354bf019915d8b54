"""What is not yet in the log or in a checkpoint: frames that were synced, and the commits that name them. Knows no Spark."""
