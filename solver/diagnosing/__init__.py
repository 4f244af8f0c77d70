"""Changed problems and needs without search, which say why nothing fits."""
