"""Makes the parts of the documentation that come from code, while MkDocs builds the pages."""
