"""The commands of `cdc`. They may import everything; nothing imports them."""
