"""What cuts an order into contiguous stages, and the orders to cut."""
