"""What operators cost, counted or measured: times, workspaces, backward passes."""
