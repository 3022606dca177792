"""Iceberg tables, one for each source table, written through Spark and readable without it.

| object                               | content                                                                |
|--------------------------------------|------------------------------------------------------------------------|
| `<ns>.<schema>.<table>`              | the source's columns, and those of the mode (`naming.OWN_COLUMNS`):    |
|                                      | `current` has the source's rows, `history` each version of a row with  |
|                                      | its interval, `changelog` a row for each change                        |
| `<ns>.<schema>__deleted.<table>`     | of mode `current`: keys of deleted rows, with the deletion's version   |

This package never imports pyspark: `sink.py` calls an `Engine` (`engine.py`), `reader.py` uses pyiceberg.
"""
