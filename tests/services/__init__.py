"""Real servers for tests: started from the test environment, on the loopback, in a temporary folder."""
