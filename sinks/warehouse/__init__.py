"""Iceberg tables, one for each source table, written through Spark and readable without it.

| object                              | what                                                                    |
|-------------------------------------|-------------------------------------------------------------------------|
| `<ns>.<schema>.<table>`             | view: the source's columns, the live rows only                          |
| `<ns>.<schema>.<table>_with_deleted`| table: the source's columns, `ws_version`, `ws_deleted`; a deleted row  |
|                                     | stays as its key and version, everything else null                      |

This package never imports pyspark: `sink.py` speaks to an `Engine` (`engine.py`), `reader.py` uses pyiceberg.
"""
