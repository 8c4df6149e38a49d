"""The live page: what it shows as facts, its files, and how both are sent. A server and a run folder use the same."""
