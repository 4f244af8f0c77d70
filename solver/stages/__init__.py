"""Stages between two ideals: what they work, send, receive and hold."""
