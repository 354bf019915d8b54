"""The writer process: journal in, log and large targets out."""
