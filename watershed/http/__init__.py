"""The read-only HTTP server of `cdc run`, `cdc sink run` and `cdc view run`: health, status, metrics, console."""
