"""A page that shows a run while it is on and after it, and its metrics. Reads the folder of the run; changes nothing."""
