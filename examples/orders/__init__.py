"""Orders change in PostgreSQL; an enriched topic in Kafka and a view in PostgreSQL follow them. `make orders` runs it."""
