"""Problems to plan: devices, options, plan files, generated graphs."""
