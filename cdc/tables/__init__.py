"""The captured tables of a session: which they are, their schemas, what changed, and whether history is continuous.
Pure.
"""
