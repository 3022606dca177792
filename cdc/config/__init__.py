"""The configuration: one model for each section, the YAML file, and the selection of columns and topics."""
