"""The read-only HTTP server of `cdc run` and `cdc sink run`: health, status, metrics, and the console."""
