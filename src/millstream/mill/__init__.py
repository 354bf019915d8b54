"""Planner, lanes and what is between them. Knows no Spark."""
