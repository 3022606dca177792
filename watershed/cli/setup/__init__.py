"""The configuration that `cdc init` proposes for a source, and the removal of what capture made in it."""
