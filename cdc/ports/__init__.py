"""Protocols between the pure middle of capture and its environment, and the values that both sides exchange.

`cdc/postgres` and `cdc/kafka` implement them; the tests have fakes that run the same loops from a seed.
"""
