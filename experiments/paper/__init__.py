"""The tables and figures that the README shows, each made from nothing by a function of its own."""
