"""The command `millstream`, and what a person sees while a topology runs."""
