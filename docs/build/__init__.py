"""Makes the parts of the documentation that come from code; `refresh` writes them into the pages."""
