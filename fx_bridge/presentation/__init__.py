"""Plans as people read them: text, pictures and pages."""
