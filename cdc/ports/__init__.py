"""Protocols between the pure middle of capture and its environment, and the values that both sides exchange.

`cdc/postgres`, `cdc/kafka` and `cdc/tables` implement them; the tests have fakes that run the same loops from a seed.
"""
