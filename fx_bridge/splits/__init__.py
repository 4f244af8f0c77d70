"""What a split is made by, checked against, and read as."""
