"""Where deliveries go: one file each, against one protocol."""
