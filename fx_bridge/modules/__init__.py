"""Plans by the names of modules: as others write them, and for them."""
