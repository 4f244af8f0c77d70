"""Folders of stages: tensors, inputs, and a manifest that checks them."""
