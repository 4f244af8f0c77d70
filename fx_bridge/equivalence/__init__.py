"""What calls of two modules leave behind, and where that differs."""
