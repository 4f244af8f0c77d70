"""Stages on devices of one process, with the transfers between them."""
