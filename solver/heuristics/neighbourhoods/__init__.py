"""Large neighbourhood search: exact sub-solves around stage boundaries."""
