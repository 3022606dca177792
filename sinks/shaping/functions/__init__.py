"""Python functions of other packages in mappings. Each runs in a process of its own, which ends if a row takes too
long.
"""
