"""Reports as HTML, Markdown, text and JSON."""
