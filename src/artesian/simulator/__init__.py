"""Virtual time: a world of data, a fleet of clients, and the engine they talk to."""
