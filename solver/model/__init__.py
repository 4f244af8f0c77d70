"""Problems, plans and limits of a search; every other package depends on this one."""
