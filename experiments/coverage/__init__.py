"""Coverage of models by capture, export and splitting."""
