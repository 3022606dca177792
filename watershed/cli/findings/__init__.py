"""The findings of `cdc check` about the source, the brokers and the history, without a start of `cdc run`."""
