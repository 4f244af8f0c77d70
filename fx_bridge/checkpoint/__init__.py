"""Folders of stages: tensors, inputs, programs, and a manifest that checks them."""
