"""A row's shape in one store: columns chosen, renamed, masked and added, and the condition that a row has to meet."""
