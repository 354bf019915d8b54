"""Where records come from, beside what Spark itself reads: one file each."""
