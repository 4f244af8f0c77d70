"""One content as HTML, Markdown, text, JSON and trace events."""
