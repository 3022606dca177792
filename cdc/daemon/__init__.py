"""The wiring of the process `cdc run`: every start, the first one, tables that are added, and state GAP."""
