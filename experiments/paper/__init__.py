"""Tables and figures of the pages, each made by one function."""
