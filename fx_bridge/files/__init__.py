"""Models as people have them in files, read without their weights and without torch."""
