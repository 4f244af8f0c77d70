"""Sets of devices and chains of stages, which several programs share."""
