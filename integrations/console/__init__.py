"""Live views of a running controller: a page for browsers, a view for terminals."""
