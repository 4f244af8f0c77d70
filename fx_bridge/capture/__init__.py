"""How models of any kind become graphs in which every value is known."""
