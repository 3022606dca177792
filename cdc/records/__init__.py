"""Records that Watershed writes to its own topics: state, control and progress. Pure."""
