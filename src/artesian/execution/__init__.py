"""Where expensive work runs: in this process, in worker processes, or on Ray. One protocol for simulator and server."""
