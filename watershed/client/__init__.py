"""The client of a running pipeline. Applications wait with it until a derived store shows what they wrote to the
source, and publish events of an outbox. Status, comparisons and commands follow positions with it, and send signals.
"""
