"""Problems and plans as networkx graphs and JSON; files written whole or not at all."""
