"""The tools of operators: the commands of `cdc`, the HTTP server, and checks of a set-up. Nothing imports them."""
