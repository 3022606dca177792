"""Protocols: what the pure middle needs of the world, and the values that it exchanges with the world.

`cdc/postgres` and `cdc/kafka` implement them; tests have fakes that run the same loops from a seed.
"""
