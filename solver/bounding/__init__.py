"""What every plan takes: windows of positions, minimum cuts, linear programs."""
