"""Problems to plan: devices, published workloads, generated graphs."""
