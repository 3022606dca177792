"""The shape of a row in one store: selected, renamed, masked and added columns, and the condition that a row must
meet.
"""
