"""One data model of what was done, and its terminal, JSON and HTML views."""
