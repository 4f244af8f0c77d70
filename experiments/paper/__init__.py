"""The tables and figures of the pages, each made from nothing by a function of its own."""
